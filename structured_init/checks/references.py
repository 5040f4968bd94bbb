"""What libraries and papers draw parameters from, and which of that a parameter equals.

Letters: i fan_in, o fan_out, g groups, n layers, σ the standard deviation that the host is configured with.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from structured_init.checks.distribution import Distribution, normal, truncated, uniform
from structured_init.checks.places import Place

TRUNCATED_STD = 0.87962566103423978  # of N(0, 1) cut at 2 σ, as JAX and timm divide by
STEP = (0.001, 0.1)  # Δ of mamba-ssm, log-uniform
DECAY = (1.0, 16.0)  # −A of Mamba-2 in mamba-ssm, uniform


class Reference(NamedTuple):
    """An initialization that somebody uses."""

    name: str  # who, and what it is called there
    expected: Distribution  # the distribution, all parameters known; of a decay −A, of a step log Δ


def constant(value: float) -> Distribution:
    """Every number the same."""
    return Distribution("constant", center=value)


def references(place: Place) -> list[Reference]:
    """Return what a parameter may be compared with at its place, without repetitions, the host libraries' own first."""
    i, o, g, n, std = max(place.fan_in, 1), max(place.fan_out, 1), place.groups, place.layers, place.std
    fixed = [  # the scale of transformer libraries
        Reference("timm", normal(0.02)),  # trunc_normal_(std=0.02) cuts at ± 2, which is 100 σ
        Reference("transformers", normal(std)),
        Reference("timm, JAX: cut at 2 σ", truncated(0.02)),  # trunc_normal_tf_
    ]
    if std != 0.02:
        fixed.append(Reference("transformers cut at 2 σ", truncated(std)))
    torch = Reference("torch", uniform(1 / math.sqrt(place.width or i)))
    xavier = [
        Reference("Xavier uniform", uniform(math.sqrt(6 / (i + o)))),
        Reference("Xavier normal", normal(math.sqrt(2 / (i + o)))),
    ]
    if o == 3 * i:  # MoCo v3; timm 'moco'
        xavier.append(Reference("Xavier uniform per third", uniform(math.sqrt(6 / (i + o / 3)))))
    kaiming = [
        Reference("Kaiming normal fan_in", normal(math.sqrt(2 / i))),
        Reference("Kaiming uniform", uniform(math.sqrt(6 / i))),
    ]
    weight = [
        torch,  # Linear and Conv: kaiming_uniform_ with a = √5
        *fixed,
        *([Reference("GPT-2 depth scale σ/√(2n)", normal(std / math.sqrt(2 * n)))] if n else []),
        *([Reference("mamba-ssm depth scale 1/√(i·n)", uniform(1 / math.sqrt(i * n)))] if n else []),  # out_proj
        *xavier,
        Reference("Kaiming normal fan_out", normal(math.sqrt(2 / o))),
        *([Reference("Kaiming normal fan_out/groups", normal(math.sqrt(2 * g / o)))] if g > 1 else []),  # timm
        *kaiming,
        Reference("LeCun normal", normal(1 / math.sqrt(i))),
        Reference("LeCun normal cut at 2 σ", truncated(1 / math.sqrt(i) / TRUNCATED_STD)),  # JAX; timm lecun_normal_
        Reference("small init √(2/5i)", normal(math.sqrt(2 / (5 * i)))),  # Nguyen & Salazar 2019; GPT-NeoX
        *([Reference("GPT-NeoX depth scale 2/(n√i)", normal(2 / (n * math.sqrt(i))))] if n else []),
        *([Reference("TinyLlama depth scale 1/(n√i)", normal(1 / (n * math.sqrt(i))))] if n else []),  # litgpt
        Reference("timm head 1/√o", uniform(1 / math.sqrt(o))),  # EfficientNet
    ]
    zeros, ones = Reference("zeros", constant(0.0)), Reference("ones", constant(1.0))
    layer_scale = [Reference(f"LayerScale {scale:g}", constant(scale)) for scale in (1e-6, 1e-5, 1e-4, 0.1)]
    low, high = map(math.log, STEP)
    found = {
        "weight": weight,
        # Of nn.MultiheadAttention: xavier_uniform_ of all three together.
        "attention input": [Reference("torch", uniform(math.sqrt(6 / (i + o)))), *weight],
        "bias": [zeros, torch, Reference("JAX ViT, N(0, 1e-6²)", normal(1e-6))],
        "embedding": [
            Reference("torch", normal(1.0)),
            *fixed,
            Reference("1/√D", normal(1 / math.sqrt(i))),  # fairseq
            *xavier,
            *kaiming,
        ],
        "bare": [
            *(zeros, ones, *fixed, Reference("timm token, N(0, 1e-6²)", normal(1e-6)), *layer_scale),
            *(Reference("N(0, 1)", normal(1.0)), *(weight if place.fan_in > 1 else [])),
        ],
        "recurrent": [torch, zeros, *xavier],
        # timm's zero_init_last has zeros, and Gemma, which adds one.
        "norm": [Reference("torch", constant(1.0)), zeros, *layer_scale],
        "norm bias": [Reference("torch", constant(0.0))],
        "step": [Reference("mamba-ssm", uniform((high - low) / 2, (high + low) / 2))],
        "decay": [Reference("mamba-ssm", uniform((DECAY[1] - DECAY[0]) / 2, sum(DECAY) / 2))],
        "skip": [Reference("mamba-ssm", constant(1.0))],
    }
    if not place.stacked:
        return list(dict.fromkeys(found[place.role]))
    turned = references(replace(place, fan_in=o, fan_out=i, stacked=0))
    own = references(replace(place, fan_in=i * o, fan_out=place.stacked * i, stacked=0))  # as torch.nn.init counts fans
    initialized = [each for each in own if each.name.startswith(("Xavier", "Kaiming"))]
    return list(dict.fromkeys([*found["bare"], *turned, *initialized]))

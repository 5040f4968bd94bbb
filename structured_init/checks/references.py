"""What a parameter is for, what libraries and papers draw such parameters from, and which of that it equals.

Letters: i fan_in, o fan_out, g groups, n layers, σ the standard deviation that the host is configured with.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import nn
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.parametrize import type_before_parametrizations as class_of

from structured_init.analysis.blocks import blocks_of, only_holds
from structured_init.checks.distribution import Distribution, Sample, fits, normal, truncated, uniform
from structured_init.hosts.state_space import state_space_sites
from structured_init.util.names import named_plain_modules

STATE_SPACE = {"A_log": "decay", "dt_bias": "step", "D": "skip"}
# nn.MultiheadAttention has its output in a class of its own
ATTENTION = (nn.MultiheadAttention, nn.modules.linear.NonDynamicallyQuantizableLinear)
STEP_LAYERS = frozenset({"dt_proj"})  # in Mamba-1 the bias of a linear layer is that of the step
TRUNCATED_STD = 0.87962566103423978  # of N(0, 1) cut at 2 σ, as JAX and timm divide by
STEP = (0.001, 0.1)  # Δ of mamba-ssm, log-uniform
DECAY = (1.0, 16.0)  # −A of Mamba-2 in mamba-ssm, uniform


@dataclass(frozen=True)
class Place:
    """Where a parameter stands."""

    # "weight", "bias", "norm", "norm bias", "embedding", "recurrent", "attention input" (fused, of
    # nn.MultiheadAttention), "decay", "step", "skip" (of state-space layers) or "bare": a parameter of no known
    # layer, such as positions
    role: str
    fan_in: int = 0  # numbers that go into one output of its layer; for a bias, those of its weight
    fan_out: int = 0  # outputs that one number of the input goes into, as torch.nn.init counts them
    groups: int = 1  # of a convolution
    layers: int = 0  # in how many blocks the network is deep; 0 of a filter, and where it is not known
    std: float = 0.02  # the standard deviation that the host is configured with (initializer_range of transformers)
    stacked: int = 0  # bare, of three axes: so many matrices, of heads or experts; which fan is which is not known
    width: int = 0  # whose root torch divides by, not fan_in's: of a recurrent state, of nn.Bilinear's first input


def places(model: nn.Module) -> dict[int, Place]:
    """Return the place of every parameter, by its id; the first layer that holds a tied one counts."""
    configs = [config for _, module in named_plain_modules(model) if (config := getattr(module, "config", None))]
    stds = (getattr(config, "initializer_range", None) for config in configs)
    std = next((value for value in stds if isinstance(value, float) and value > 0), 0.02)
    layers = num_layers(model)
    sites = state_space_sites(model)
    described = {id(getattr(site.layout, key)): role for site in sites for key, role in STATE_SPACE.items()}
    found: dict[int, Place] = {}
    for name, module in named_plain_modules(model):
        for key, parameter in (*_computed_from(module).items(), *module._parameters.items()):
            if parameter is None:
                continue
            role, fans = described.get(id(parameter)) or _role(name, key, module), _fans(module)
            if role == "bias" and isinstance(module, ATTENTION):
                fans = None  # torch draws it as zeros, whatever comes in
            several = role == "bare" and parameter.ndim == 3 and math.prod(parameter.shape[1:]) > 1
            stacked = len(parameter) if several else 0
            if stacked or (role in ("bare", "weight", "recurrent", "attention input") and fans is None):
                shape = parameter.shape[1:] if stacked else parameter.shape
                fans = (math.prod(shape[1:]), shape[0] if shape else 1)
            fan_in, fan_out = fans or (0, 0)
            width = getattr(module, "hidden_size" if role == "recurrent" else "in1_features", 0)
            deep = layers if role == "bare" or math.prod(parameter.shape[2:]) == 1 else 0
            place = Place(role, fan_in, fan_out, getattr(module, "groups", 1), deep, std, stacked, width)
            found.setdefault(id(parameter), place)
    return found


def num_layers(model: nn.Module) -> int:
    """Return how many layers a network has: what its configuration says, else its repeated blocks, else 0."""
    for _, module in named_plain_modules(model):
        for key in ("num_hidden_layers", "n_layer", "num_layers"):
            value = getattr(getattr(module, "config", None), key, None)
            if isinstance(value, int) and value > 0:
                return value
    modules, layers = dict(named_plain_modules(model)), defaultdict(Counter)
    for name, block in blocks_of(model).items():
        outer = name.rpartition(".")[0]
        together = re.search(r"\b\d+$", outer) and only_holds(type(modules[outer]))
        # What stands together is one layer, such as [attention, MLP]; equal blocks of a stage are several.
        listed = isinstance(modules.get(outer), nn.ModuleList)
        kind = tuple(key for key, _ in block.named_parameters()) if listed else name
        layers[outer if together else name][kind] += 1
    return sum(max(kinds.values()) for kinds in layers.values())


def _role(name: str, key: str, module: nn.Module) -> str:
    kind = type(module).__name__.lower()
    if key in STATE_SPACE:
        return STATE_SPACE[key]
    if key == "bias" and name.rpartition(".")[2] in STEP_LAYERS:
        return "step"
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return "recurrent"
    if isinstance(module, nn.MultiheadAttention):
        return "attention input" if key.endswith("weight") else "bias" if key.endswith("bias") else "bare"
    if "norm" in kind or "layerscale" in kind.replace("_", ""):
        return "norm bias" if key.endswith("bias") else "norm"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return "embedding"
    if key.endswith("bias") and _fans(module) is not None:
        return "bias"
    return "weight" if key == "weight" and _fans(module) is not None else "bare"


def _computed_from(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameter that is drawn as each weight which torch norms or otherwise computes, by its name."""
    parts = module.parametrizations.items() if is_parametrized(module) else ()
    found = {
        key: each.original1 if isinstance(each[0], _WeightNorm) else getattr(each, "original", None)
        for key, each in parts
    }
    legacy = (("weight", module._parameters.get(name)) for name in ("weight_v", "weight_orig"))
    return {key: each for key, each in (*legacy, *found.items()) if each is not None}


def _fans(module: nn.Module) -> tuple[int, int] | None:
    """Return fan_in and fan_out of a layer with a weight of two or more axes."""
    own = module._parameters | _computed_from(module)  # to ask for a computed weight may change it
    weight = own.get("in_proj_weight" if isinstance(module, nn.MultiheadAttention) else "weight")
    if not isinstance(weight, nn.Parameter) or weight.ndim < 2:
        return None
    receptive = math.prod(weight.shape[2:])
    inputs, outputs = weight.shape[1] * receptive, weight.shape[0] * receptive
    transposed = class_of(module).__name__ == "Conv1D" and weight.ndim == 2  # of transformers, stored (in, out)
    return (outputs, inputs) if transposed else (inputs, outputs)


class Reference(NamedTuple):
    """An initialization that somebody uses."""

    name: str  # who, and what it is called there
    expected: Distribution  # the distribution, all parameters known; of a decay −A, of a step log Δ


def constant(value: float) -> Distribution:
    """Every number the same."""
    return Distribution("constant", center=value)


def matching(sample: Sample, place: Place) -> list[Reference]:
    """Return the references of a place that numbers may have been drawn from, the host libraries' own first."""
    return [reference for reference in references(place) if fits(sample, reference.expected)]


def references(place: Place) -> list[Reference]:
    """Return what a parameter may be compared with at its place, without repetitions."""
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
        "bias": [
            zeros,
            torch if place.fan_in else Reference("torch", constant(0.0)),  # of nn.MultiheadAttention
            Reference("JAX ViT, N(0, 1e-6²)", normal(1e-6)),
        ],
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
    own = references(replace(place, fan_in=i * o, fan_out=place.stacked * i, stacked=0))  # as torch.nn.init counts fans
    turned = references(replace(place, fan_in=o, fan_out=i, stacked=0))
    initialized = [each for each in own if each.name.startswith(("Xavier", "Kaiming"))]
    before = initialized if place.stacked > 1 else []  # (1, T, D) is rather a table
    return list(dict.fromkeys([*before, *found["bare"], *turned, *initialized]))

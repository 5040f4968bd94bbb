"""What libraries and papers draw parameters from, and which of that a parameter equals.

Letters: i fan_in, o fan_out, n layers, σ the standard deviation that the host is configured with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from structured_init.analysis.audit.distribution import Distribution, fits, normal, truncated, uniform
from structured_init.analysis.audit.places import Place
from structured_init.analysis.audit.sample import Sample

TRUNCATED_STD = 0.87962566103423978  # of N(0, 1) cut at 2 σ, as JAX and timm divide by
STEP = (0.001, 0.1)  # Δ of mamba-ssm, log-uniform
DECAY = (1.0, 16.0)  # −A of Mamba-2 in mamba-ssm, uniform


class Reference(NamedTuple):
    """An initialization that somebody uses.

    Attributes:
        name: who, and what it is called there.
        expected: the distribution, all parameters known; of a decay −A, of a step log Δ.
    """

    name: str
    expected: Distribution


def constant(value: float) -> Distribution:
    """Every number the same."""
    return Distribution("constant", center=value)


def matching(sample: Sample, place: Place) -> list[Reference]:
    """Return the references of a place that numbers may have been drawn from, the host libraries' own first."""
    return [reference for reference in references(place) if fits(sample, reference.expected)]


def references(place: Place) -> list[Reference]:
    """Return what a parameter may be compared with at its place, without repetitions."""
    return list(dict.fromkeys(_ROLES[place.role](place)))


def _weight(place: Place) -> Iterator[Reference]:
    i, o, n = max(place.fan_in, 1), max(place.fan_out, 1), place.layers
    yield Reference("torch", uniform(1 / math.sqrt(i)))  # Linear and Conv: kaiming_uniform_ with a = √5
    yield from _small(place)
    yield Reference("GPT-2 depth scale σ/√(2n)", normal(place.std / math.sqrt(2 * n)))
    yield Reference("mamba-ssm depth scale 1/√(i·n)", uniform(1 / math.sqrt(i * n)))  # out_proj
    yield Reference("Xavier uniform", uniform(math.sqrt(6 / (i + o))))
    yield Reference("Xavier normal", normal(math.sqrt(2 / (i + o))))
    yield Reference("Kaiming normal fan_out", normal(math.sqrt(2 / o)))
    if place.groups > 1:
        yield Reference("Kaiming normal fan_out/groups", normal(math.sqrt(2 * place.groups / o)))  # timm
    yield Reference("Kaiming normal fan_in", normal(math.sqrt(2 / i)))
    yield Reference("Kaiming uniform", uniform(math.sqrt(6 / i)))
    yield Reference("LeCun normal", normal(1 / math.sqrt(i)))
    yield Reference("LeCun normal cut at 2 σ", truncated(1 / math.sqrt(i) / TRUNCATED_STD))  # JAX; timm lecun_normal_
    yield Reference("small init √(2/5i)", normal(math.sqrt(2 / (5 * i))))  # Nguyen & Salazar 2019; GPT-NeoX
    yield Reference("GPT-NeoX depth scale 2/(n√i)", normal(2 / (n * math.sqrt(i))))
    yield Reference("TinyLlama depth scale 1/(n√i)", normal(1 / (n * math.sqrt(i))))  # litgpt
    yield Reference("timm head 1/√o", uniform(1 / math.sqrt(o)))  # EfficientNet
    if o == 3 * i:
        yield Reference("Xavier uniform per third", uniform(math.sqrt(6 / (i + o / 3))))  # MoCo v3; timm's 'moco'


def _small(place: Place) -> Iterator[Reference]:
    """Yield the fixed scale of transformer libraries."""
    yield Reference("timm", normal(0.02))  # trunc_normal_(std=0.02) cuts at ± 2, which is 100 σ
    yield Reference("transformers", normal(place.std))
    yield Reference("timm, JAX: cut at 2 σ", truncated(0.02))  # trunc_normal_tf_
    if place.std != 0.02:
        yield Reference("transformers cut at 2 σ", truncated(place.std))


def _attention_input(place: Place) -> Iterator[Reference]:
    bound = math.sqrt(6 / (place.fan_in + place.fan_out))
    yield Reference("torch", uniform(bound))  # nn.MultiheadAttention: xavier_uniform_ of all three together
    yield from _weight(place)


def _bias(place: Place) -> Iterator[Reference]:
    yield Reference("zeros", constant(0.0))
    if place.fan_in:
        yield Reference("torch", uniform(1 / math.sqrt(place.fan_in)))
    yield Reference("JAX ViT, N(0, 1e-6²)", normal(1e-6))


def _embedding(place: Place) -> Iterator[Reference]:
    yield Reference("torch", normal(1.0))
    yield from _small(place)
    yield Reference("1/√D", normal(1 / math.sqrt(max(place.fan_in, 1))))  # fairseq
    yield Reference("Xavier uniform", uniform(math.sqrt(6 / max(place.fan_in + place.fan_out, 1))))


def _bare(place: Place) -> Iterator[Reference]:
    yield Reference("zeros", constant(0.0))
    yield Reference("ones", constant(1.0))
    yield from _small(place)
    yield Reference("timm token, N(0, 1e-6²)", normal(1e-6))
    yield from _layer_scale()
    yield Reference("N(0, 1)", normal(1.0))
    yield from (each for each in _weight(place) if place.fan_in > 1)


def _recurrent(place: Place) -> Iterator[Reference]:
    yield Reference("torch", uniform(1 / math.sqrt(max(place.fan_in, 1))))
    yield Reference("zeros", constant(0.0))


def _norm(place: Place) -> Iterator[Reference]:
    yield Reference("torch", constant(1.0))
    yield Reference("zeros", constant(0.0))  # timm's zero_init_last; Gemma, which adds one
    yield from _layer_scale()


def _layer_scale() -> Iterator[Reference]:
    for scale in (1e-6, 1e-5, 1e-4, 0.1):
        yield Reference(f"LayerScale {scale:g}", constant(scale))


def _norm_bias(place: Place) -> Iterator[Reference]:
    yield Reference("torch", constant(0.0))


def _step(place: Place) -> Iterator[Reference]:
    low, high = map(math.log, STEP)
    yield Reference("mamba-ssm", uniform((high - low) / 2, (high + low) / 2))


def _decay(place: Place) -> Iterator[Reference]:
    yield Reference("mamba-ssm", uniform((DECAY[1] - DECAY[0]) / 2, sum(DECAY) / 2))


def _skip(place: Place) -> Iterator[Reference]:
    yield Reference("mamba-ssm", constant(1.0))


_ROLES = {
    "weight": _weight,
    "attention input": _attention_input,
    "bias": _bias,
    "embedding": _embedding,
    "bare": _bare,
    "recurrent": _recurrent,
    "norm": _norm,
    "norm bias": _norm_bias,
    "step": _step,
    "decay": _decay,
    "skip": _skip,
}

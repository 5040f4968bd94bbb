"""What libraries and papers draw parameters from, and which of that a parameter equals.

Letters: i fan_in, o fan_out, g groups, n layers, σ the standard deviation that the host is configured with.
"""

from __future__ import annotations

import math
from operator import itemgetter

from structured_init.checks.distribution import (
    FEWEST,
    SHAPES,
    STANDARD_ERRORS,
    Distribution,
    standard_error,
)
from structured_init.checks.places import Place
from structured_init.checks.records import Record

LIBRARIES = ("torch", "timm", "transformers")
References = dict[str, Distribution]  # who, and what it is called there → the distribution, its scale known


def normal(scale: float) -> Distribution:
    """N(0, scale²)."""
    return Distribution("normal", scale)


def cut(scale: float) -> Distribution:
    """N(0, scale²), drawn again wherever it is more than 2 σ away."""
    return Distribution("truncated normal", scale)


def uniform(bound: float) -> Distribution:
    """U(−bound, bound)."""
    return Distribution("uniform", bound)


def references(place: Place) -> References:
    """Return what a parameter may be compared with at its place, the host libraries' own first."""
    i, o, g, n, std = max(place.fan_in, 1), max(place.fan_out, 1), place.groups, place.layers, place.std
    torch = {"torch": uniform(1 / math.sqrt(i))}  # Linear and Conv: kaiming_uniform_ with a = √5
    if place.role == "bias":
        return torch | {"JAX ViT, N(0, 1e-6²)": normal(1e-6)}
    common = {
        "timm": normal(0.02),  # trunc_normal_(std=0.02) cuts at ± 2, which is 100 σ
        "transformers": normal(std),
        "timm, JAX": cut(0.02),  # trunc_normal_tf_
        "transformers, cut": cut(std),
        "Xavier uniform": uniform(math.sqrt(6 / (i + o))),
        "Xavier normal": normal(math.sqrt(2 / (i + o))),
        "Kaiming normal fan_out": normal(math.sqrt(2 / o)),
        "Kaiming normal fan_in": normal(math.sqrt(2 / i)),
        "Kaiming uniform": uniform(math.sqrt(6 / i)),
    }
    if place.role == "embedding":
        return {"torch": normal(1.0), "1/√D": normal(1 / math.sqrt(i))} | common  # the second is fairseq's
    if place.role != "weight":
        return common | {"timm token, N(0, 1e-6²)": normal(1e-6), "N(0, 1)": normal(1.0)}
    weight = {
        "Xavier uniform per third": uniform(math.sqrt(6 / (i + o / 3))),  # MoCo v3; timm 'moco'
        "Kaiming normal fan_out/groups": normal(math.sqrt(2 * g / o)),  # timm
        "LeCun normal": normal(1 / math.sqrt(i)),
        "LeCun normal, cut": cut(1 / math.sqrt(i) / SHAPES["truncated normal"].std),  # JAX; timm lecun_normal_
        "small init √(2/5i)": normal(math.sqrt(2 / (5 * i))),  # Nguyen & Salazar 2019; GPT-NeoX
    }
    if not n:
        return torch | common | weight
    deep = {
        "GPT-2 depth scale σ/√(2n)": normal(std / math.sqrt(2 * n)),
        "mamba-ssm depth scale 1/√(i·n)": uniform(1 / math.sqrt(i * n)),  # out_proj
        "GPT-NeoX depth scale 2/(n√i)": normal(2 / (n * math.sqrt(i))),
        "TinyLlama depth scale 1/(n√i)": normal(1 / (n * math.sqrt(i))),  # litgpt
    }
    return torch | common | deep | weight


def equal_references(record: Record) -> References:
    """Return the references that a draw equals by its kind, where that is clear, and by its scale.

    Libraries come first, then what is nearest.
    """
    seen = record.distribution
    if seen.kind not in (*SHAPES, "unclear") or seen.center or record.size < FEWEST:
        return {}
    found = []
    for name, expected in references(record.place).items():
        apart = round(abs(record.std / expected.std - 1), 6)
        error = STANDARD_ERRORS * standard_error(record.size, SHAPES[expected.kind].kurtosis)
        if seen.kind in (expected.kind, "unclear") and apart <= error:
            found.append((name not in LIBRARIES, apart, name, expected))
    return {name: expected for _, _, name, expected in sorted(found, key=itemgetter(0, 1))}

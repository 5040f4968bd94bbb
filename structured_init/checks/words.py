"""Parameters in words: what they were drawn from, and whose initialization that is."""

from __future__ import annotations

import math

from structured_init.checks.distribution import Distribution
from structured_init.checks.records import Record

LIBRARIES = ("torch", "timm", "transformers", "mamba-ssm")
STRUCTURES = ("identity", "orthogonal", "delta orthogonal", "impulse")
WORDS = {  # kind → how it is said
    "normal": "normal σ {scale:.2g}",
    "truncated normal": "normal σ {scale:.2g} cut at {cut:.2g} σ",
    "uniform": "uniform ± {scale:.2g}",
    "unclear": "unclear, std {scale:.2g}",
    "other": "no known distribution, std {scale:.2g}",
    "memory": "never initialized",
    "unreadable": "not readable",
}


def describe_kind(record: Record) -> str:
    """Say what a parameter is in a few words: the kind, with the scale of the reference where one matches."""
    shown = record.references[0].expected if record.references else record.distribution
    if record.role == "step" and shown.kind in ("uniform", "log-uniform step"):
        low, high = (math.exp(shown.center + sign * shown.scale) for sign in (-1, 1))
        return f"Δ log-uniform {low:.2g} to {high:.2g}"
    if record.role == "decay" and shown.kind in ("uniform", "log of uniform"):
        return f"log U({shown.center - shown.scale:.2g}, {shown.center + shown.scale:.2g})"
    if record.role == "step" and shown.kind == "constant":
        return f"Δ = {math.exp(shown.center):.3g}"
    if record.role == "decay" and shown.kind == "constant":
        return f"−A = {shown.center:.3g}"
    return describe_distribution(shown)


def label(record: Record) -> str:
    """Return what a parameter was drawn from and whose initialization that is."""
    if not record.references:
        return describe_kind(record)
    first = record.references[0]
    same = [each.name for each in record.references if each.expected == first.expected]
    names = [name for name in same if name in LIBRARIES] or [name for name in same[:1] if name not in ("zeros", "ones")]
    plain = record.distribution.kind == "constant" and first.expected.center in (0.0, 1.0)
    return describe_kind(record) if plain or not names else f"{describe_kind(record)} ({', '.join(names)})"


def describe_distribution(distribution: Distribution) -> str:
    """Say a kind and its scale, to two or three digits."""
    kind, scale, center = distribution.kind, distribution.scale, distribution.center
    if kind == "constant":
        return {0.0: "zeros", 1.0: "ones"}.get(center, f"constant {center:.3g}")
    if kind in STRUCTURES:
        return kind if math.isclose(scale, 1, rel_tol=1e-3) else f"{scale:.2g} × {kind}"
    if kind == "unclear" and not scale:
        return f"one number, {center:.2g}"
    around = f", mean {center:.2g}" if center else ""
    return WORDS.get(kind, kind).format(scale=scale, cut=distribution.cut) + (around if kind in WORDS else "")

"""A line per run of equal blocks: what their parameters were drawn from, and scales behind them."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from structured_init.checks.depth import BlockScale
from structured_init.checks.distribution import STANDARD_ERRORS
from structured_init.checks.products import aligned, in_tokens
from structured_init.checks.records import Record
from structured_init.util.names import folded_name

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
CLOSE = 0.05  # relative difference of scales within which blocks without a reference are alike


class Line(NamedTuple):
    """One block, or several that are alike."""

    name: str  # ``blocks.0–11`` of blocks.0 … blocks.11
    text: str  # what their parameters were drawn from, scales behind them, products and half-lives that stand out


def block_lines(
    records: Sequence[Record],
    scales: Sequence[BlockScale],
    products: Mapping[str, dict[str, float]],
    half_lives: Mapping[str, Tensor],
) -> list[Line]:
    """Return a line per run of blocks whose parameters have the same names, shapes and initializations.

    Runs are of blocks whose names differ in numbers alone, whatever stands between: a mixer, the norm beside it.
    """
    by_block: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_block[record.block].append(record)
    runs: list[list[str]] = []
    last: dict[str, list[str]] = {}  # run of each kind of name; a block is compared with the first of its run
    for block, own in by_block.items():
        kind = re.sub(r"\d+", "#", block)
        first = by_block[last[kind][0]] if kind in last else []
        if len(first) == len(own) and all(map(_same_draw, first, own)):
            last[kind].append(block)
        else:
            last[kind] = [block]
            runs.append(last[kind])
    found = []
    for blocks in runs:
        inside = [products[name] for name in products if _block_of(name, by_block) in blocks]
        lives = [half_lives[name] for name in half_lives if _block_of(name, by_block) in blocks]
        mixing = aligned(inside[0]) if inside else []
        mixing += [f"half-lives {in_tokens(lives)}"] if lives else []
        behind = _scales([each for each in scales if each.name in blocks])
        said = filter(None, (_parameters(by_block[blocks[0]]), behind, ", ".join(mixing)))
        found.append(Line(folded_name(blocks), " | ".join(said)))
    return found


def _block_of(layer: str, blocks: Iterable[str]) -> str:
    return max((each for each in blocks if layer == each or layer.startswith(f"{each}.")), key=len, default="")


def _scales(seen: Sequence[BlockScale]) -> str:
    """Return the first and the last of blocks one behind the other, else the smallest and the largest."""
    if not seen:
        return ""
    behind = len({each.stack for each in seen}) == 1
    said = []
    for what in ("activation", "gradient"):
        values = [getattr(each, what) for each in seen]
        ends = (values[0], values[-1]) if behind else (min(values), max(values))
        between = " → " if behind else " to "
        said.append(f"{what}s {between.join(f'{each:.2g}' for each in ends[: len(seen)])}")
    return ", ".join(said)


def _same_draw(one: Record, other: Record) -> bool:
    """Tell whether two parameters of one name may be of one draw: by a reference of both, else by kind and scale."""
    if (one.inside, one.shape, one.trainable) != (other.inside, other.shape, other.trainable):
        return False
    if one.references and other.references:
        return not set(one.references).isdisjoint(other.references)
    slack = 1e-6 if one.constant else CLOSE + STANDARD_ERRORS * math.sqrt(1 / one.size + 1 / other.size)
    return one.distribution.kind == other.distribution.kind and math.isclose(one.rms, other.rms, rel_tol=slack)


def _parameters(records: Iterable[Record]) -> str:
    """Say what the parameters of one block were drawn from; equal words stand once, and what is usual last."""
    groups: dict[str, list[str]] = defaultdict(list)  # words → names inside of the block
    named, usual = set(), {"norms ones": False, "biases zeros": False}
    for record in records:
        said = label(record)
        role = {"norm": "norms", "bias": "biases", "norm bias": "biases"}.get(record.role, "")
        if f"{role} {said}" in usual:
            usual[f"{role} {said}"] = True
        else:
            groups[said].append(record.inside.removesuffix(".weight"))
            named.add(role)
    shown = [f"{_names_in_words(names)}: {said}".removeprefix(": ") for said, names in groups.items()]
    shown += [f"other {words}" if words.split()[0] in named else words for words in usual if usual[words]]
    return "; ".join(shown)


def _names_in_words(names: Iterable[str]) -> str:
    alike: dict[str, list[str]] = defaultdict(list)  # experts in one name
    for name in names:
        alike[re.sub(r"\bexperts\.\d+", "experts.#", name)].append(name)
    return ", ".join(filter(None, map(folded_name, alike.values())))


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
    kind, scale, center = shown.kind, shown.scale, shown.center
    if kind == "constant":
        return {0.0: "zeros", 1.0: "ones"}.get(center, f"constant {center:.3g}")
    if kind in STRUCTURES:
        return kind if math.isclose(scale, 1, rel_tol=1e-3) else f"{scale:.2g} × {kind}"
    if kind == "unclear" and not scale:
        return f"one number, {center:.2g}"
    around = f", mean {center:.2g}" if center else ""
    return WORDS.get(kind, kind).format(scale=scale, cut=shown.cut) + (around if kind in WORDS else "")


def label(record: Record) -> str:
    """Return what a parameter was drawn from and whose initialization that is."""
    if not record.references:
        return describe_kind(record)
    first = record.references[0]
    same = [each.name for each in record.references if each.expected == first.expected]
    names = [name for name in same if name in LIBRARIES] or [name for name in same[:1] if name not in ("zeros", "ones")]
    plain = record.distribution.kind == "constant" and first.expected.center in (0.0, 1.0)
    return describe_kind(record) if plain or not names else f"{describe_kind(record)} ({', '.join(names)})"

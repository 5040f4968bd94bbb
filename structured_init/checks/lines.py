"""A line per run of equal blocks: what their parameters were drawn from, and the scale behind them."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from structured_init.checks.distribution import STANDARD_ERRORS
from structured_init.checks.one_pass import BlockScale
from structured_init.checks.records import Record
from structured_init.checks.references import LIBRARIES, equal_references
from structured_init.util.names import folded_name

PLAIN = ("ones", "zeros")  # what norms and biases usually are, which is said last
PARTS = {"norm": "norms", "bias": "biases", "norm bias": "biases"}  # role → how such parts are called together
WORDS = {  # kind → how it is said
    "normal": "normal σ {:.2g}",
    "truncated normal": "normal σ {:.2g} cut at 2 σ",
    "uniform": "uniform ± {:.2g}",
    "unclear": "unclear, std {:.2g}",
    "other": "no known distribution, std {:.2g}",
    "memory": "never initialized",
    "unreadable": "not readable",
}
CLOSE = 0.05  # relative difference of scales within which blocks are alike, beside chance


class Line(NamedTuple):
    """One block, or several that are alike."""

    name: str  # ``blocks.0–11`` of blocks.0 … blocks.11
    text: str  # what their parameters were drawn from, and the scale behind the first and the last


def block_lines(records: Sequence[Record], scales: Sequence[BlockScale]) -> list[Line]:
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
        if len(first) != len(own) or not all(map(_same_draw, first, own)):
            last[kind] = []
            runs.append(last[kind])
        last[kind].append(block)
    found = []
    for blocks in runs:
        text = _parameters(by_block[blocks[0]])
        behind = [f"{each.activation:.2g}" for each in scales if each.name in blocks]
        if behind:
            text += f" | activations {' → '.join(dict.fromkeys((behind[0], behind[-1])))}"
        found.append(Line(folded_name(blocks), text))
    return found


def _same_draw(one: Record, other: Record) -> bool:
    """Tell whether two parameters may be of one draw, by kind and scale; where one kind is unclear, by scale alone."""
    if (one.inside, one.shape, one.trainable) != (other.inside, other.shape, other.trainable):
        return False
    kinds = {one.kind, other.kind} - {"unclear"}
    slack = 1e-6 if one.constant else CLOSE + STANDARD_ERRORS * math.sqrt(1 / one.size + 1 / other.size)
    return len(kinds) < 2 and one.constant == other.constant and math.isclose(one.rms, other.rms, rel_tol=slack)


def _parameters(records: Iterable[Record]) -> str:
    """Say what the parameters of one block were drawn from; equal words stand once."""
    groups: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        said = label(record)
        name = record.inside.removesuffix(".weight")
        if said in PLAIN:
            name = PARTS.get(record.role, name)
        alike = re.sub(r"\.\d+(?=\.)", "#", name)  # experts in one name
        groups[said][alike].append(name)
    shown = []
    for said in sorted(groups, key=PLAIN.__contains__):
        names = ", ".join(folded_name(list(dict.fromkeys(same))) for same in groups[said].values())
        shown.append(f"{names}: {said}".removeprefix(": "))
    return "; ".join(shown)


def describe(record: Record) -> str:
    """Say what a parameter is in a few words: the kind, with the scale of the reference where one matches."""
    seen = next(iter(equal_references(record).values()), record.distribution)
    kind, scale = seen.kind, seen.scale
    if kind == "constant":
        return {0.0: "zeros", 1.0: "ones"}.get(seen.center, f"constant {seen.center:.3g}")
    if kind not in WORDS:
        return kind if not scale or math.isclose(scale, 1, rel_tol=1e-3) else f"{scale:.2g} × {kind}"
    around = f", mean {seen.center:.2g}" if seen.center else ""
    return WORDS[kind].format(scale) + around


def label(record: Record) -> str:
    """Return what a parameter was drawn from and whose initialization that is: libraries first, else one name."""
    found = equal_references(record)
    if not found:
        return describe(record)
    first = next(iter(found.values()))
    same = [name for name, expected in found.items() if expected == first]
    names = [name for name in same if name in LIBRARIES] or same[:1]
    return f"{describe(record)} ({', '.join(names)})"

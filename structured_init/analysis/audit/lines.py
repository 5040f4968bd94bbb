"""One line per block, blocks that are alike folded into one."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from structured_init.analysis.audit.depth import BlockScale
from structured_init.analysis.audit.distribution import STANDARD_ERRORS
from structured_init.analysis.audit.products import aligned
from structured_init.analysis.audit.records import Record, text
from structured_init.names import folded_name

LIBRARIES = ("torch", "timm", "transformers", "mamba-ssm")
CLOSE = 0.05  # relative difference of scales within which blocks without a reference are alike


@dataclass(frozen=True)
class Line:
    """One block, or several that are alike.

    Attributes:
        blocks: their names.
        parameters: what they were drawn from.
        scales: activations and gradients behind them; empty where no batch was run.
        products: diagonals that stand out from chance.
    """

    blocks: tuple[str, ...]
    parameters: str
    scales: str = ""
    products: str = ""

    @property
    def name(self) -> str:
        """``blocks.0–11`` for blocks.0 … blocks.11."""
        return folded_name(self.blocks)

    def __str__(self) -> str:
        return " | ".join(each for each in (self.parameters, self.scales, self.products) if each)


def block_lines(
    records: Sequence[Record], scales: Iterable[BlockScale], products: Mapping[str, dict[str, float]]
) -> list[Line]:
    """Return a line per run of blocks whose parameters have the same names, shapes and initializations."""
    by_block: dict[str, list[Record]] = {}
    for record in records:
        by_block.setdefault(record.block, []).append(record)
    depth = {each.name: each for each in scales}
    attention: dict[str, list[dict[str, float]]] = {}
    for name, numbers in products.items():
        around = [block for block in by_block if name == block or name.startswith(f"{block}.")]
        attention.setdefault(max(around, key=len, default=""), []).append(numbers)
    found = []
    for blocks in _runs(by_block):
        inside = [numbers for block in blocks for numbers in attention.get(block, [])]
        shown = aligned(inside[0]) if inside else []
        found.append(Line(blocks, _parameters(by_block[blocks[0]]), _scales(blocks, depth), ", ".join(shown)))
    return found


def _runs(by_block: Mapping[str, list[Record]]) -> list[tuple[str, ...]]:
    """Return neighbouring blocks that are alike, together; each is compared with the first of its run."""
    runs: list[list[str]] = []
    for block, inside in by_block.items():
        if runs and _alike(runs[-1][0], by_block[runs[-1][0]], block, inside):
            runs[-1].append(block)
        else:
            runs.append([block])
    return [tuple(run) for run in runs]


def _alike(first: str, ones: Sequence[Record], second: str, others: Sequence[Record]) -> bool:
    """Tell whether two blocks may stand in one line: named and shaped alike, and drawn from the same."""
    if re.sub(r"\d+", "#", first) != re.sub(r"\d+", "#", second) or len(ones) != len(others):
        return False
    return all(_same_draw(one, other) for one, other in zip(ones, others, strict=True))


def _same_draw(one: Record, other: Record) -> bool:
    if (_inside(one), one.shape, one.trainable) != (_inside(other), other.shape, other.trainable):
        return False
    if one.references or other.references:
        return label(one) == label(other)
    a, b = one.distribution, other.distribution
    close = max(CLOSE, STANDARD_ERRORS / math.sqrt(one.size))
    alike = a.kind == b.kind or "unclear" in (a.kind, b.kind)
    return alike and math.isclose(a.scale, b.scale, rel_tol=close) and math.isclose(a.center, b.center, rel_tol=close)


def label(record: Record) -> str:
    """Return what a parameter was drawn from and whose initialization that is."""
    if not record.references:
        return text(record)
    first = record.references[0]
    same = [each.name for each in record.references if each.expected == first.expected]
    names = [name for name in same if name in LIBRARIES] or [name for name in same[:1] if name not in ("zeros", "ones")]
    plain = record.distribution.kind == "constant" and first.expected.center in (0.0, 1.0)
    return text(record) if plain or not names else f"{text(record)} ({', '.join(names)})"


def _parameters(records: Sequence[Record]) -> str:
    groups: dict[str, list[str]] = {}
    usual: list[str] = []
    for record in records:
        said = label(record)
        if record.role in ("bias", "norm bias") and said == "zeros":
            usual.append("biases zeros")
        elif record.role == "norm" and said == "ones":
            usual.append("norms ones")
        else:
            groups.setdefault(said, []).append(_inside(record).removesuffix(".weight"))
    drawn = [f"{', '.join(filter(None, names))}: {said}".removeprefix(": ") for said, names in groups.items()]
    return "; ".join([*drawn, *sorted(set(usual), reverse=True)])


def _inside(record: Record) -> str:
    """Return the name within the block."""
    return record.name.removeprefix(record.block).lstrip(".")


def _scales(blocks: Sequence[str], depth: Mapping[str, BlockScale]) -> str:
    seen = [depth[block] for block in blocks if block in depth]
    if not seen:
        return ""
    return (
        f"activations {_span([each.activation for each in seen])}, gradients {_span([each.gradient for each in seen])}"
    )


def _span(values: Sequence[float]) -> str:
    return f"{values[0]:.2g}" if len(values) == 1 else f"{values[0]:.2g} → {values[-1]:.2g}"

"""One line per block, blocks that are alike folded into one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from structured_init.analysis.audit.depth import BlockScale
from structured_init.analysis.audit.products import aligned
from structured_init.analysis.audit.records import Record, text


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
    found = []
    for _, run in groupby(by_block, key=lambda block: _signature(block, by_block[block])):
        blocks = tuple(run)
        inside = [numbers for name, numbers in products.items() if _lies_in(name, blocks)]
        stands_out = list(dict.fromkeys(each for numbers in inside for each in aligned(numbers)))
        shown = stands_out if len(stands_out) <= 2 else [stands_out[0], f"… in {len(inside)} layers"]
        found.append(Line(blocks, _parameters(by_block[blocks[0]]), _scales(blocks, depth), ", ".join(shown)))
    return found


def folded_name(blocks: Sequence[str]) -> str:
    """Return the name of a run of blocks: the number in which they differ as a range."""
    if len(blocks) == 1:
        return blocks[0]
    for match in re.finditer(r"\d+", blocks[0]):
        before, after = blocks[0][: match.start()], blocks[0][match.end() :]
        numbers = [each[len(before) : len(each) - len(after)] for each in blocks]
        alike = all(each.startswith(before) and each.endswith(after) for each in blocks)
        if alike and all(number.isdigit() for number in numbers):
            return f"{before}{numbers[0]}–{numbers[-1]}{after}"
    return f"{blocks[0]} … {blocks[-1]} ({len(blocks)} blocks)"


def label(record: Record) -> str:
    """Return what a parameter was drawn from and whose initialization that is."""
    if not record.references:
        return text(record)
    first = record.references[0]
    same = [each.name for each in record.references if each.expected == first.expected]
    names = [name for name in same if name not in ("zeros", "ones")]
    plain = record.distribution.kind == "constant" and first.expected.center in (0.0, 1.0)
    return text(record) if plain or not names else f"{text(record)} ({', '.join(names[:2])})"


def _signature(block: str, records: Sequence[Record]) -> tuple:
    """Return what blocks in one line have in common; a module outside of every block stands alone."""
    parts = tuple((_inside(record), record.shape, label(record), record.trainable) for record in records)
    return re.sub(r"\d+", "#", block), parts


def _parameters(records: Sequence[Record]) -> str:
    groups: dict[str, list[str]] = {}
    for record in records:
        said = label(record)
        if record.role in ("bias", "norm bias") and said == "zeros":
            groups.setdefault("biases zeros", [])
        elif record.role == "norm" and said == "ones":
            groups.setdefault("norms ones", [])
        else:
            groups.setdefault(said, []).append(_inside(record).removesuffix(".weight"))
    return "; ".join(f"{', '.join(filter(None, names))}: {said}".removeprefix(": ") for said, names in groups.items())


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


def _lies_in(name: str, blocks: Iterable[str]) -> bool:
    return any(name == block or name.startswith(f"{block}.") for block in blocks)

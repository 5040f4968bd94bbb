"""Checks inside of one matrix: rows that repeat, numbers of another precision, and single ones far from all others."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from structured_init.checks.findings import Finding, folded
from structured_init.checks.measured import Measured
from structured_init.checks.weights import DRAWN

COMPARED = 16  # numbers of a row by which it is told from others
LOOKED_AT = 4096  # numbers of which the different ones are counted
FAR = 8.0  # standard deviations beyond which a single number belongs to no distribution


def repeated(measured: Measured) -> Iterator[Finding]:
    """Find equal rows or columns in a drawn matrix: equal heads, keys that are queries, rows of an embedding."""
    found = []
    for each in measured.records:
        if each.distribution.kind not in DRAWN or len(each.shape) < 2 or each.place.stacked:
            continue
        value = measured.value(each).flatten(1)
        for rows, what in ((value, "rows"), (value.T, "columns")):
            some = rows[rows.any(dim=1)]
            again = _repeated(some) if min(rows.shape) >= COMPARED else 0
            if again:
                found.append((each.name, f"{again:,} of {len(some):,} {what} repeat another"))
                break
    return folded("copies", found)


def _repeated(rows: Tensor) -> int:
    """Count rows that are a copy of another, but for constant ones."""
    some = rows[:, :: max(rows.shape[1] // COMPARED, 1)]
    some = some[some.amax(1) > some.amin(1)]
    return len(some) - len(torch.unique(some, dim=0))


def coarse(measured: Measured) -> Iterator[Finding]:
    """Find matrices in float32 that are all numbers of bfloat16 or float16, or hold few different ones."""
    found = []
    for each in measured.records:
        drawn = each.distribution.kind in DRAWN and each.name not in measured.fixed
        if not drawn or each.dtype != "float32" or len(each.shape) < 2:
            continue
        value = measured.value(each).flatten()
        some = value[:LOOKED_AT]
        if len(some.unique()) < 3:
            continue  # zeros and ones, at places that are drawn
        for dtype in (torch.bfloat16, torch.float16):
            if torch.equal(value.to(dtype).float(), value):
                name = str(dtype).removeprefix("torch.")
                found.append((each.name, f"is float32, and all its numbers are those of {name}"))
                break
        else:
            if len(some.unique()) * 8 < len(some):
                found.append((each.name, f"has {len(some.unique()):,} different numbers among {len(some):,}"))
    return folded("coarse", found)


def lone(measured: Measured) -> Iterator[Finding]:
    """Find single numbers far from all others, as the bound that ``trunc_normal_`` returns once in a while."""
    found = []
    for each in measured.records:
        if each.distribution.kind in DRAWN and each.std > each.usual_std > 0 and each.largest > FAR * each.usual_std:
            found.append((each.name, f"σ is {each.usual_std:.2g}, and the largest number {each.largest:.2g}"))
    return folded("scale", found)

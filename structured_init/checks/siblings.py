"""The odd one out: a parameter of one block unlike the same parameter of its siblings in a list."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from structured_init.checks.distribution import FEWEST
from structured_init.checks.findings import Finding, folded
from structured_init.checks.measured import Measured
from structured_init.checks.records import Record
from structured_init.checks.scales import InLists

NEAR = math.log(1.1)  # of two sizes, beside chance
ERRORS = 6.0  # standard errors of the ratio of two sizes
TREND = math.log(2.2)  # by which the first or last of sizes that fall or rise may differ: 1/i halves at the second
RISE = math.log(4)  # from the first to the last of four blocks or more: known trends over depth fall
SIBLINGS = 3  # that are compared, or more
CONSTANT = 1e-6  # relative spread


def odd(measured: Measured) -> Iterator[Finding]:
    """Find a single block whose parameter is zero, larger, smaller or forgotten, among others that are alike."""
    lists = InLists(measured.model)
    groups: dict[tuple[str, tuple[int, ...]], list[Record]] = defaultdict(list)
    for each in measured.records:
        groups[lists.folded(each.name, innermost=True), each.shape].append(each)
    found = []
    for group in groups.values():
        constant = all(_is_constant(each) for each in group)
        if len(group) >= SIBLINGS and (group[0].size >= FEWEST or constant):
            found += _odd_one(group)
    return folded("odd", found)


def _odd_one(group: Sequence[Record]) -> Iterator[tuple[str, str]]:
    sizes = [_size(each) for each in group]
    median = sorted(sizes)[len(sizes) // 2]
    near = NEAR + 1.5 * ERRORS / math.sqrt(2 * group[0].size)
    usually_constant = 2 * sum(map(_is_constant, group)) > len(group)
    others = []
    for place, each in enumerate(group):
        if _is_constant(each) != usually_constant or _apart(sizes[place], median) > near:
            others.append(place)
    rises = all(one < other for one, other in pairwise(sizes))
    if len(group) > SIBLINGS and rises and _apart(sizes[0], sizes[-1]) > RISE:
        yield group[-1].name, f"root mean square grows with depth, from {sizes[0]:.2g} to {sizes[-1]:.2g}"
        return
    if len(others) != 1:
        return
    place = others[0]
    rising = sizes == sorted(sizes) or sizes == sorted(sizes, reverse=True)
    if rising and place in (0, len(group) - 1) and _apart(sizes[place], median) < TREND + near:
        return
    text = f"root mean square {sizes[place]:.2g}; in the other {len(group) - 1} blocks it is {median:.2g}"
    yield group[place].name, text


def _size(record: Record) -> float:
    return math.hypot(record.mean, record.usual_std)


def _is_constant(record: Record) -> bool:
    return record.usual_std <= CONSTANT * abs(record.mean)


def _apart(one: float, other: float) -> float:
    """Return the distance of two sizes, as logarithms."""
    if one == other:
        return 0.0
    return abs(math.log(one / other)) if min(one, other) > 0 and math.isfinite(one * other) else math.inf

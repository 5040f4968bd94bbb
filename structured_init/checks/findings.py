"""What a check finds: one line each, and one for all that differ in numbers alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

FEW = 4  # names in a line


@dataclass(frozen=True)
class Finding:
    """One thing to look at."""

    kind: str  # the check that found it, as in ``skip=``
    names: tuple[str, ...]  # the parameters or blocks that it is about
    text: str  # the line
    problem: bool = True  # whether training suffers from it, so that the test fails; else it is an observation

    def __str__(self) -> str:
        return f"{'problem' if self.problem else 'note'}: {self.text}"


def not_made(kind: str, why: str) -> Finding:
    """Return the note of a check that could not be made, or not of everything."""
    return Finding(kind, (), why, problem=False)


def folded(kind: str, lines: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """Yield a finding for lines (name, text) that differ in the numbers of name and text alone.

    A last number counts behind another: the layers of every block are alike, not those of one block.
    """
    groups: dict[tuple[str, str], dict[str, str]] = {}
    for name, text in lines:
        alike = re.sub(r"^(\D*)\d+|\d+(?!\d*\.\w+$)", r"\1#", name), re.sub(r"[\d.,e+-]+", "#", text)
        groups.setdefault(alike, {})[name] = text
    for group in groups.values():
        first, text = next(iter(group.items()))
        more = f" (and {len(group) - 1} more like it)" if len(group) > 1 else ""
        yield Finding(kind, tuple(group), f"{first}: {text}{more}")


def first_names(names: Sequence[str]) -> str:
    """Return a few names for a line, and how many more there are."""
    shown = ", ".join(names[:FEW])
    return f"{shown} and {len(names) - FEW} more" if len(names) > FEW else shown

"""What a check finds: one line each, and one for all that differ in numbers alone."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

FEW = 4  # names in a line
# A check yields the name of a parameter, and what is wrong with it; or several names, and a line that says them itself.
Found = Iterator[tuple[str | tuple[str, ...], str]]


class NotMade(Exception):
    """A check could not be made, and why."""


@dataclass(frozen=True)
class Finding:
    """One thing that training suffers from."""

    kind: str  # the check that found it, as in ``skip=``
    names: tuple[str, ...]  # the parameters or blocks that it is about
    text: str  # the line

    def __str__(self) -> str:
        return f"problem: {self.text}"


@dataclass(frozen=True)
class Check:
    """One row: a check by name, what it finds, and why it was left out, or of what."""

    name: str
    findings: tuple[Finding, ...] = ()
    left_out: str = ""

    @property
    def failures(self) -> tuple[str, ...]:
        """Return what fails, a line each."""
        return tuple(each.text for each in self.findings)

    def __str__(self) -> str:
        said = [*self.failures[:1]]
        if len(self.findings) > 1:
            said.append(f"{len(self.findings)} lines in all, in failures")
        if self.left_out:
            said.append(f"left out: {self.left_out}")
        return f"{self.name:9} {'; '.join(said) or 'passed'}"


def left_out(checks: Iterable[Check]) -> list[str]:
    """Return what could not be checked, a line for each reason, which begins with the names of the checks."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for check in checks:
        if check.left_out:
            reasons[check.left_out].append(check.name)
    return [f"{', '.join(names):9} left out: {why}" for why, names in reasons.items()]


def folded(check: str, found: Found) -> tuple[Finding, ...]:
    """Return a finding for each line, and one for parameters whose names and texts differ in numbers alone.

    A last number counts behind another: the layers of every block are alike, not those of one block.
    """
    groups: dict[tuple[str, str], dict[str, str]] = {}
    whole = []
    for names, text in found:
        if isinstance(names, tuple):
            whole.append(Finding(check, names, text))
        else:
            alike = re.sub(r"^(\D*)\d+|\d+(?!\d*\.\w+$)", r"\1#", names), re.sub(r"[\d.,e+-]+", "#", text)
            groups.setdefault(alike, {})[names] = text
    lines = []
    for group in groups.values():
        first, text = next(iter(group.items()))
        more = f" (and {len(group) - 1} more like it)" if len(group) > 1 else ""
        lines.append(Finding(check, tuple(group), f"{first}: {text}{more}"))
    return (*lines, *whole)


def first_names(names: Sequence[str]) -> str:
    """Return a few names for a line, and how many more there are."""
    shown = ", ".join(names[:FEW])
    return f"{shown} and {len(names) - FEW} more" if len(names) > FEW else shown

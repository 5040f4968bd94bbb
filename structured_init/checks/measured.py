"""All that is known of a model before a check is made: what builds it, its parameters, and what one batch tells."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from structured_init.checks.builds import Builds
from structured_init.checks.depth import Depth
from structured_init.checks.findings import Finding, folded
from structured_init.checks.inside import inspect
from structured_init.checks.records import Record, walk
from structured_init.hosts.registry import selects

Patterns = str | Collection[str]
Lines = dict[str, list[tuple[str, str]]]  # check → name of a parameter, and what is wrong with it


@dataclass(frozen=True)
class Measured:
    """A model as every check sees it."""

    model: nn.Module
    records: list[Record]  # every parameter
    chosen: list[Record]  # those that are asked about
    lines: Lines  # what is wrong with one of these alone
    depth: Depth
    builds: Builds | None = None  # None of a model that was given built
    fixed: Collection[str] = ()  # names of what is the same under two seeds
    seed: int = 0
    # what the author of the model says
    loss_tolerance: float = 0.1
    frozen: Patterns = ()
    unused: Patterns = ()
    snapshot: Path = Path()
    update_snapshot: bool = False

    def alone(self, check: str) -> Iterator[Finding]:
        """Yield what a check of one parameter at a time has found."""
        return folded(check, self.lines.get(check, ()))

    def unmoved(self) -> list[Record]:
        """Return trainable parameters that no output depends on; none where no batch was run."""
        if not self.depth.gradients:
            return []
        return [each for each in self.chosen if each.trainable and each.name not in self.depth.gradients]


def measure_parameters(
    model: nn.Module,
    where: str | list[str] | None = None,
    fixed: Collection[str] = (),
    describe: Callable[[Record, Tensor], Record] = lambda record, value: record,
) -> tuple[list[Record], Lines]:
    """Return a record of every parameter, and what is wrong with those that ``where`` selects, each alone."""
    records: list[Record] = []
    lines: Lines = defaultdict(list)
    for record, value in walk(model, fixed):
        records.append(record if value is None else describe(record, value))
        if value is not None and selects(where, record.name, record):
            for check, text in inspect(record, value):
                lines[check].append((record.name, text))
    return records, lines


def without(records: Iterable[Record], patterns: Patterns) -> list[Record]:
    """Leave out parameters that some patterns name."""
    given = [patterns] if isinstance(patterns, str) else list(patterns)
    return [each for each in records if not selects(given, each.name, each)]

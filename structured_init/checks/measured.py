"""All that is known of a model before a check is made: what builds it, its parameters, and what one batch tells."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import Tensor, nn

from structured_init.checks.builds import Builds
from structured_init.checks.depth import Depth
from structured_init.checks.records import Record
from structured_init.hosts.registry import selects
from structured_init.util.names import plain_names
from structured_init.writer import full_value

Patterns = str | Collection[str]


@dataclass(frozen=True)
class Measured:
    """A model as every check sees it."""

    model: nn.Module
    records: list[Record]  # every parameter
    chosen: list[Record]  # those that are asked about
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

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Parameters by their first plain name."""
        plain = plain_names(self.model)
        return {plain(name): each for name, each in self.model.named_parameters()}

    def value(self, record: Record) -> Tensor:
        """Return the numbers of a parameter on the CPU."""
        return full_value(self.parameters[record.name], record.name)

    def unmoved(self) -> list[Record]:
        """Return trainable parameters that no output depends on; none where no batch was run."""
        if not self.depth.gradients:
            return []
        return [each for each in self.chosen if each.trainable and each.name not in self.depth.gradients]


def without(records: Iterable[Record], patterns: Patterns) -> list[Record]:
    """Leave out parameters that some patterns name."""
    given = [patterns] if isinstance(patterns, str) else list(patterns)
    return [each for each in records if not selects(given, each.name, each)]

"""All that is known of a model before a check is made: what builds it, its parameters, and what one batch tells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import Tensor, nn

from structured_init.checks.builds import Builds, tensors
from structured_init.checks.one_pass import Depth
from structured_init.checks.records import Record
from structured_init.writer import full_value

Patterns = str | Sequence[str]


@dataclass(frozen=True)
class Measured:
    """A model as every check sees it."""

    model: nn.Module
    records: list[Record]  # every parameter
    chosen: list[Record]  # those that are asked about
    depth: Depth
    builds: Builds | None = None  # None of a model that was given built
    seed: int = 0
    # what the author of the model says
    frozen: Patterns = ()
    unused: Patterns = ()
    snapshot: Path = Path()
    update_snapshot: bool = False

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Parameters and buffers by their first plain name."""
        return tensors(self.model)

    @cached_property
    def written(self) -> list[Record]:
        """Parameters whose numbers could be read, and were written."""
        return [each for each in self.chosen if math.isfinite(each.std)]

    @cached_property
    def draws(self) -> list[Record]:
        """Parameters whose numbers may be draws."""
        return [each for each in self.chosen if each.drawn]

    def value(self, record: Record) -> Tensor:
        """Return the numbers of a parameter on the CPU."""
        return full_value(self.tensors[record.name], record.name)

    def unmoved(self) -> list[Record]:
        """Return trainable parameters that no output depends on; none where no batch was run."""
        if not self.depth.gradients:
            return []
        return [each for each in self.chosen if each.trainable and each.name not in self.depth.gradients]

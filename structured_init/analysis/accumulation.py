"""How statistics of maps add up over batches and processes, as torchmetrics: sums in float64, of a size that is fixed.

Letters: B batch, H heads, N tokens, P = Gy·Gx patches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from structured_init.analysis import statistics
from structured_init.analysis.statistics import Grid, Maps, PerHead
from structured_init.errors import StructuredInitError


class Sums(Metric):
    """A metric of sums: states that add up over batches and processes."""

    is_differentiable = False
    higher_is_better = None
    full_state_update = False

    def add_sums(self, **shapes: tuple[int, ...]) -> None:
        """Add states of zeros, by name and shape."""
        for name, shape in shapes.items():
            self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")


class MeanPerHead(Sums):
    """The mean of a statistic per head (H,), over all that is seen.

    Args:
        statistic: maps (B, H, N, N) → (H,), a mean over samples and queries, or over samples.
        num_heads: H.
        prefix_tokens: number of leading tokens whose queries do not count.
        per_query: whether a sample counts by its number of queries, which matters where sequences differ in length.
        **kwargs: see ``torchmetrics.Metric``.
    """

    def __init__(
        self,
        statistic: Callable[[Tensor], Tensor],
        num_heads: int,
        prefix_tokens: int = 0,
        per_query: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.statistic, self.prefix_tokens, self.per_query = statistic, prefix_tokens, per_query
        self.add_sums(total=(num_heads,), count=())

    def update(self, maps: Maps) -> None:
        """Add the maps of a batch."""
        check_heads(maps, self.total.shape[0])
        weight = maps.shape[0] * (maps.shape[2] - self.prefix_tokens if self.per_query else 1)
        self.total = self.total + weight * self.statistic(maps).double()
        self.count = self.count + weight

    def compute(self) -> PerHead:
        """Return the mean per head; nan before the first batch."""
        return self.total / self.count


class MeanMap(Sums):
    """The mean attention map over patches, of which a subclass says something: a mean over samples, (H, P, P).

    Args:
        num_heads: H.
        grid: rows and columns of patches; (1, N) for a sequence.
        prefix_tokens: number of leading tokens that are no patches.
        **kwargs: see ``torchmetrics.Metric``.
    """

    def __init__(self, num_heads: int, grid: Grid, prefix_tokens: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.grid, self.prefix_tokens = grid, prefix_tokens
        patches = grid[0] * grid[1]
        self.add_sums(total=(num_heads, patches, patches), count=())

    def update(self, maps: Maps) -> None:
        """Add the maps of a batch."""
        check_heads(maps, self.total.shape[0])
        patches = statistics.patch_maps(maps, self.prefix_tokens)
        statistics.checked_grid(patches, self.grid)
        self.total = self.total + patches.double().sum(dim=0)
        self.count = self.count + maps.shape[0]

    def compute(self) -> Tensor:
        """Return the mean map; nan before the first batch."""
        return self.total / self.count


def check_heads(maps: Tensor, num_heads: int) -> None:
    """Refuse maps of another number of heads than a metric was made for."""
    if maps.shape[1] != num_heads:
        raise StructuredInitError(f"this metric is for {num_heads} heads, got maps of {maps.shape[1]}")

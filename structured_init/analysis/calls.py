"""What is seen of attention during one call of a module, and the maps that come of it when the call is over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn

from structured_init.analysis.axes import Arrangement, AxesError, arrangement, heads_of, refuse_channels
from structured_init.analysis.trail import Origin

Compute = Callable[[int], Tensor]


@dataclass(frozen=True)
class Seen:
    """One map as the host computes it.

    Attributes:
        shape: its shape; queries and keys are last.
        compute: (entries of axis 0) → map.
        value_dim: the last axis of the values; ``None`` where the map is known to be (batch, heads, queries, keys).
        origin: the softmax that it comes from, where the host writes it out.
    """

    shape: tuple[int, ...]
    compute: Compute
    value_dim: int | None = None
    origin: Origin | None = None


@dataclass(eq=False)
class Call:
    """One running call of a module, and the maps that were seen in it so far.

    Attributes:
        name: the module's plain name.
        module: the module.
        inputs: the shapes of what it was given.
        seen: the maps.
    """

    name: str
    module: nn.Module
    inputs: list[tuple[int, ...]]
    seen: list[Seen] = field(default_factory=list)

    def maps(self, batches: Iterable[int]) -> Iterator[tuple[Compute, tuple[int, int, int, int]] | AxesError]:
        """Yield a function (samples) → maps (batch, heads, queries, keys) and the shape of all, or why there is none.

        Args:
            batches: the lengths that the batch may have (see ``arrangement``).
        """
        heads = heads_of(self.module)
        for seen in _joined(self.seen, heads):
            try:
                arranged = self._arrangement(seen, heads, batches)
            except AxesError as error:
                yield error
            else:
                yield partial(_arranged, arranged, seen.compute), arranged.shape

    def _arrangement(self, seen: Seen, heads: int | None, batches: Iterable[int]) -> Arrangement:
        if seen.value_dim is None:
            if len(seen.shape) != 4:
                raise AxesError(f"its maps {seen.shape} are not (batch, heads, queries, keys)")
            return Arrangement(seen.shape)
        if seen.origin is not None and seen.origin.products > 1 and seen.shape[-1] < seen.origin.logits.shape[-1]:
            raise AxesError(f"its softmax {tuple(seen.origin.logits.shape)} is multiplied with the values in pieces")
        arranged = arrangement(seen.shape, heads, batches)
        between = seen.origin is None or seen.origin.between
        refuse_channels(seen.shape, seen.value_dim, arranged.shape[1], self.module, self.inputs, between=between)
        return arranged


def _joined(seen: list[Seen], heads: int | None) -> list[Seen]:
    """Return the maps of one call; those of single heads, as many as there are heads, are one map."""
    shapes = {each.shape for each in seen}
    if heads is None or heads < 2 or len(seen) != heads or len(shapes) != 1:
        return seen
    (shape,), parts = shapes, [each.compute for each in seen]
    if len(shape) == 4 and shape[1] == 1:
        joined = Seen((shape[0], heads, *shape[2:]), lambda rows: torch.cat([p(rows) for p in parts], 1))
    elif len(shape) == 3:
        joined = Seen((shape[0], heads, *shape[1:]), lambda rows: torch.stack([p(rows) for p in parts], 1))
    else:
        return seen
    return [replace(joined, value_dim=seen[0].value_dim)]


def _arranged(arranged: Arrangement, compute: Callable[[int], Tensor], samples: int) -> Tensor:
    return arranged(compute(arranged.rows(samples)))[:samples]

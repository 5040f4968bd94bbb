"""Taking the maps of attention from a pass in which it is known where they are computed."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from structured_init.hosts.watching.mode import BATCHED, PassMode, ProductName, is_fused


class TapMode(PassMode):
    """Take one factor of some products of batches of matrices, in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.softmax: tuple[Tensor, int, Tensor] | None = None  # what the last was taken of, its axis, what it gave

    def wants(self, left: Tensor) -> bool | None:
        """Say which factor of the present product is wanted: the left one (``True``), the right one, or none."""
        raise NotImplementedError

    def take(self, maps: Float[Tensor, "entries queries keys"]) -> None:
        """Take the map of the present product."""
        raise NotImplementedError

    def operate(self, func, name, args, kwargs):  # noqa: ANN001, ANN201
        """Carry an operation out; take note of a softmax, and give away what is wanted of a product."""
        result = func(*args, **kwargs)
        if name in ("_softmax", "_safe_softmax"):
            self.softmax = (args[0], args[1], result)
        elif is_fused(name):
            self.written_out(func, args, kwargs)
        elif name in BATCHED:
            left, right = args[-2:]
            if (is_left := self.wants(left)) is not None:
                self.take(self._in_float32(left if is_left else right.mT))
        return result

    def follows_softmax(self, maps: Tensor) -> bool:
        """Say whether a factor may be what the last softmax gave: one over the last axis, of as many maps and keys."""
        if self.softmax is None:
            return False
        _, axis, given = self.softmax
        return axis in (-1, given.ndim - 1) and (given.numel(), given.shape[-1]) == (maps.numel(), maps.shape[-1])

    def _in_float32(self, maps: Float[Tensor, "entries queries keys"]) -> Float[Tensor, "entries queries keys"]:
        """Return maps in float32; of a lower precision, from what their softmax was taken of, where it gave them."""
        if torch.finfo(maps.dtype).bits < 32 and self.softmax is not None:
            logits, axis, given = self.softmax
            if given.numel() == maps.numel() and torch.equal(given.to(maps.dtype).reshape(maps.shape), maps):
                return logits.float().softmax(axis).reshape(maps.shape)
        return maps.float()


class MapTap(TapMode):
    """Keep one of the two factors of some products: product → whether the left one."""

    def __init__(self, wanted: dict[ProductName, bool]) -> None:
        super().__init__()
        self.wanted = wanted
        self.maps: dict[ProductName, Tensor] = {}

    def wants(self, left: Tensor) -> bool | None:
        return self.wanted.get(self.product)

    def take(self, maps: Tensor) -> None:
        self.maps[self.product] = maps

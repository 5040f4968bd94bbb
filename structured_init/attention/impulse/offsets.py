"""Where each head looks, and the attention maps that this asks for.

Letters: H heads, N tokens of a grid (Gy, Gx), f kernel_size. An offset (m, n) leads m rows down, n columns right.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from structured_init.errors import StructuredInitError

Order = Literal["random", "fixed", "covering"]
Border = Literal["zero", "clamp"]

# 2505.19985 (code): centre, up, right, left, down, then the corners; numbers count a 3×3 kernel row by row.
FIXED_ORDER = (4, 1, 5, 3, 7, 0, 2, 6, 8)


def draw_offsets(order: Order, heads: int, kernel_size: int, *, generator: torch.Generator) -> Int[Tensor, "heads 2"]:
    """Choose one offset of an f × f kernel for each head.

    Args:
        order: ``"random"``, independently and with replacement (2401.12511, 2404.01139); ``"fixed"``, the order of
            2505.19985, head h takes entry h mod 9; ``"covering"``, a random order in which every offset occurs once
            before any occurs again.
        heads: H.
        kernel_size: f, odd.
        generator: draws the offsets, or their order.

    Raises:
        StructuredInitError: ``"fixed"`` with f other than 3; ``"covering"`` with fewer heads than offsets.
    """
    count = kernel_size**2
    if order == "random":
        index = torch.randint(0, count, (heads,), generator=generator)
    elif order == "fixed":
        if kernel_size != 3:
            raise StructuredInitError(
                f"Impulse: the fixed order is only for a 3×3 kernel, got kernel_size {kernel_size}: use random offsets"
            )
        index = torch.tensor(FIXED_ORDER)[torch.arange(heads) % count]
    else:
        if heads < count:
            raise StructuredInitError(
                f"Impulse: covering needs at least {count} heads, got {heads}: use random offsets or more heads"
            )
        index = torch.randperm(count, generator=generator)[torch.arange(heads) % count]
    return torch.stack([index // kernel_size, index % kernel_size], dim=1) - kernel_size // 2


def impulse_maps(
    offsets: Int[Tensor, "heads 2"], grid: tuple[int, int], *, border: Border
) -> Float64[Tensor, "heads tokens tokens"]:
    """The convolution with each head's impulse as a matrix: entry (query, query + offset) is 1.

    It is the Kronecker product of two shifts, one along each axis.

    Args:
        offsets: one (rows, columns) per head.
        grid: (Gy, Gx).
        border: what happens to a query whose target lies outside: see :func:`axis_shift`.
    """
    return torch.stack(
        [
            torch.kron(axis_shift(grid[0], rows, border=border), axis_shift(grid[1], columns, border=border))
            for rows, columns in offsets.tolist()
        ]
    )


def axis_shift(size: int, offset: int, *, border: Border) -> Float64[Tensor, "size size"]:
    """The shift along one axis: entry (i, i + offset) is 1.

    Args:
        size: G.
        offset: how far.
        border: ``"zero"`` leaves the row of a query whose target lies outside empty, as published, which no softmax
            can produce; ``"clamp"`` lets it look at the last position inside.
    """
    source = torch.arange(size)
    target = source + offset
    inside = (target >= 0) & (target < size)
    shift = torch.zeros(size, size, dtype=torch.float64)
    kept = inside if border == "zero" else torch.ones_like(inside)
    shift[source[kept], target[kept].clamp(0, size - 1)] = 1
    return shift

"""Codes: for every number of a tensor, which source it came from and as which of its channels.

A code is one integer: 16 bits for the source and 37 for the channel, or for the index of a parameter's entry; 0 where
nothing is known. 53 bits are what float64 keeps exactly, so codes survive being viewed as complex numbers. Tokens of
one source have the same codes, which lie in memory once (a stride of 0): ``compact`` looks at them once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Int64
from torch import Tensor

PLACE_BITS, SOURCE_BITS = 37, 16
ROW_BITS = 20  # of a logit's place: its query; the others are its head
LIMIT = 1 << SOURCE_BITS


def pack(source: int | Int64[Tensor, ...], places: Int64[Tensor, ...]) -> Int64[Tensor, ...]:
    """Return the codes of a source's channels or entries."""
    return (source << PLACE_BITS) + places


def source(codes: Int64[Tensor, ...]) -> Int64[Tensor, ...]:
    """Return the source of every number; 0 where it is not known."""
    return codes >> PLACE_BITS


def place(codes: Int64[Tensor, ...]) -> Int64[Tensor, ...]:
    """Return the channel, or the index within its parameter, of every number."""
    return codes & ((1 << PLACE_BITS) - 1)


def logits(source: int, heads: Int64[Tensor, " batch"], shape: torch.Size) -> Int64[Tensor, "batch queries keys"]:
    """Return the codes of logits: the place says of which head and of which query each is."""
    rows = torch.arange(shape[1], device=heads.device)[:, None]
    return pack(source, (heads[:, None, None] << ROW_BITS) + rows).expand(shape)


def head(codes: Int64[Tensor, ...]) -> Int64[Tensor, ...]:
    """Return the head of every logit."""
    return place(codes) >> ROW_BITS


def over_queries(codes: Int64[Tensor, ...], axis: int) -> bool:
    """Say whether an axis of logits, or of what was made of them, runs over their queries, and only that one does."""
    few = compact(codes)
    rows, known = place(few) & ((1 << ROW_BITS) - 1), few != 0

    def vary(axis: int) -> bool:
        if rows.shape[axis] == 1:
            return False
        least = torch.where(known, rows, 1 << ROW_BITS).amin(axis, keepdim=True)
        return bool((known & (rows > least)).any())

    return vary(axis) and not any(vary(other) for other in range(few.ndim) if other != axis % few.ndim)


def whole(codes: Tensor) -> Int64[Tensor, ...]:
    """Return codes as whole numbers also where they are viewed as complex ones, with one more axis."""
    return torch.view_as_real(codes).long() if codes.is_complex() else codes


def unknown(tensor: Tensor) -> Int64[Tensor, ...]:
    """Return the codes of a tensor of which nothing is known."""
    return torch.zeros((1,) * tensor.ndim, dtype=torch.int64, device=tensor.device).expand(tensor.shape)


def compact(codes: Int64[Tensor, ...]) -> Int64[Tensor, ...]:
    """Return codes with every axis along which they lie in memory once cut to length 1."""
    for axis, (size, stride) in enumerate(zip(codes.shape, codes.stride(), strict=True)):
        if size > 1 and stride == 0:
            codes = codes.narrow(axis, 0, 1)
    return codes


def over_pixels(codes: Int64[Tensor, "batch channels *pixels"], size: torch.Size) -> Int64[Tensor, ...] | None:
    """Return the code that each channel has at all pixels, at those of another size; ``None`` where it has several."""
    columns = over_tokens(codes.flatten(2).mT) if codes.ndim > 2 else None
    return None if columns is None else columns.view(*columns.shape, *(1 for _ in size[2:])).expand(size)


def together(function: Callable[..., Tensor], *codes: Int64[Tensor, ...]) -> Int64[Tensor, ...]:
    """Apply a function number by number, once for those that lie in memory once."""
    shape = torch.broadcast_shapes(*(code.shape for code in codes))
    return function(*(compact(code) for code in codes)).expand(shape)


def over_tokens(codes: Int64[Tensor, "batch tokens channels"]) -> Int64[Tensor, "batch channels"] | None:
    """Return the code that every column has; ``None`` where a column holds several.

    Numbers of unknown origin, such as padding, are passed over.
    """
    batch, _, channels = codes.shape
    codes = compact(codes)
    columns = codes.amax(dim=1)
    return columns.expand(batch, channels) if ((codes == columns[:, None]) | (codes == 0)).all() else None

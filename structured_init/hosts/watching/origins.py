"""Where every number of a tensor comes from: a code for its source and which of its channels it is, carried along.

A code is one integer: 16 bits for the source and 37 for the channel, or for the index of a parameter's entry; 0 where
nothing is known. 53 bits are what float64 keeps exactly, so codes survive being viewed as complex numbers. Tokens of
one source have the same codes, which lie in memory once (a stride of 0): ``compact`` looks at them once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from structured_init.hosts.watching.mode import Operation

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
    columns = over_tokens(codes.flatten(2).mT)
    return None if columns is None else columns.view(*columns.shape, *(1 for _ in size[2:])).expand(size)


def together(function: Callable[..., Tensor], *codes: Int64[Tensor, ...]) -> Int64[Tensor, ...]:
    """Apply a function number by number, once for those that lie in memory once."""
    shape = torch.broadcast_shapes(*(code.shape for code in codes))
    return function(*(compact(code) for code in codes)).expand(shape)


def over_tokens(
    codes: Int64[Tensor, "batch tokens channels"], other: Int64[Tensor, "batch tokens channels"] | None = None
) -> Int64[Tensor, "batch channels"] | None:
    """Return the code that every column has, in a rotation as one of two; ``None`` where a column holds several.

    Numbers of unknown origin, such as padding, are passed over. Tokens that are not turned tell which of two it is.
    """
    batch, _, channels = codes.shape
    codes = compact(codes)
    other = codes if other is None else compact(other)
    still = codes.where(codes == other, 0).amax(dim=1)
    columns = still.where(still > 0, codes.amax(dim=1))
    alike = (codes == columns[:, None]) | (other == columns[:, None]) | (codes == 0)
    return columns.expand(batch, channels) if alike.all() else None


# Operations that leave numbers as they are and put them elsewhere: those are repeated on the codes.

MOVES = frozenset(
    (
        *("view", "_unsafe_view", "reshape", "_reshape_alias", "permute", "transpose", "t", "numpy_T", "slice"),
        *("select", "unbind", "split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk"),
        *("chunk", "expand", "squeeze", "unsqueeze", "as_strided", "alias", "detach", "clone", "contiguous", "cat"),
        *("stack", "index_select", "index", "gather", "take_along_dim", "repeat", "repeat_interleave", "roll"),
        *("flip", "constant_pad_nd", "unfold", "diagonal", "view_as_real", "view_as_complex", "pixel_shuffle"),
        *("pixel_unshuffle", "channel_shuffle", "slice_scatter", "select_scatter", "masked_select", "where", "copy"),
        *("copy_", "index_put", "index_put_", "index_copy", "index_copy_", "scatter", "scatter_", "lift_fresh"),
        *("lift_fresh_copy", "embedding"),
    )
)
# New tensors that are filled later.
MAKES = frozenset(
    (
        *("empty", "zeros", "new_empty", "new_zeros", "empty_like", "zeros_like", "full_like"),
        *("empty_strided", "new_empty_strided"),
    )
)
FILLS = frozenset(["copy_", "index_put_", "index_copy_", "scatter_"])
SAME = frozenset(["clone", "contiguous", "alias", "detach", "lift_fresh", "lift_fresh_copy"])
TURNS = {"roll": 2, "flip": 1}  # where their arguments have the axes along which they move numbers
SHAPES = frozenset(["view", "_unsafe_view", "reshape", "_reshape_alias"])


def moved(operation: Operation, known: dict[int, Tensor]) -> Any:
    """Repeat a move on codes: tensors are replaced by theirs, whole numbers and masks stay, all else is unknown."""
    func, name, tensor = operation.func, operation.name, operation.args[0]

    def replace(leaf: Tensor) -> Tensor:
        if id(leaf) in known:
            return known[id(leaf)]
        return unknown(leaf) if leaf.is_floating_point() or leaf.is_complex() else leaf

    args, kwargs = exchanged(operation.args, replace), exchanged(operation.kwargs, replace)
    if name in SAME:
        return args[0]
    if name == "constant_pad_nd":  # what pads is of no origin, whatever its value
        return func(args[0], args[1], 0) if any(args[1]) else args[0]
    if name in TURNS and len(args) > TURNS[name] and _alike_along(args[0], args[TURNS[name]]):
        return args[0]
    if name in SHAPES:
        return reshaped(args[0], args[1])
    if name in ("cat", "stack"):
        parts, axis = args[0], args[1] if len(args) > 1 else 0
        return _side_by_side([part.unsqueeze(axis) for part in parts] if name == "stack" else parts, axis)
    if name == "as_strided":  # strides are those of the numbers, not of their codes
        alike = torch.empty_strided(tensor.shape, tensor.stride(), dtype=torch.int64, device=tensor.device)
        return func(alike.copy_(args[0]), *args[1:], **kwargs)
    if name == "view_as_complex":  # 53 bits go through
        return torch.view_as_complex(args[0].double().contiguous())
    if name == "view_as_real":
        return torch.view_as_real(args[0]).long()
    return func(*args, **kwargs)


def reshaped(tensor: Tensor, shape: list[int]) -> Tensor:
    """Return codes in another shape; axes along which they lie in memory once stay so unless they are cut or joined."""
    if tensor.numel() == 0:
        return tensor.reshape(shape)
    rest = tensor.numel() // math.prod(size for size in shape if size != -1)
    old, new = list(tensor.shape), [rest if size == -1 else size for size in shape]
    few, kept, made, one, two = compact(tensor), [], [], 0, 0
    while one < len(old) or two < len(new):  # the fewest neighbouring axes of both that hold equally many numbers
        first, second = one, two
        one, two = min(one + 1, len(old)), min(two + 1, len(new))
        while (left := math.prod(old[first:one])) != (right := math.prod(new[second:two])):
            one, two = (one + 1, two) if left < right else (one, two + 1)
        once = all(size == 1 for size in few.shape[first:one])
        kept += few.shape[first:one] if once else old[first:one]
        made += [1] * (two - second) if once else new[second:two]
    return few.expand(kept).reshape(made).expand(new)


def _side_by_side(parts: list[Tensor], axis: int) -> Tensor:
    """Return codes put together along an axis; the others along which all lie in memory once stay so."""
    shapes = [compact(part).shape for part in parts]
    if len({len(shape) for shape in shapes}) > 1:  # an empty tensor of one axis goes with any
        return torch.cat(parts, axis)
    axis %= len(shapes[0])
    size = [max(sizes) for sizes in zip(*shapes, strict=True)]
    few = torch.cat(
        [part[tuple(slice(None if n > 1 or a == axis else 1) for a, n in enumerate(size))] for part in parts], axis
    )
    whole = list(parts[0].shape)
    whole[axis] = few.shape[axis]
    return few.expand(whole)


def exchanged(tree: Any, replace: Callable[[Tensor], Tensor]) -> Any:
    """Return a nest of arguments with other tensors; thousands are looked at in a pass, so torch's own is too slow."""
    if isinstance(tree, Tensor):
        return replace(tree)
    if isinstance(tree, dict):
        return {name: exchanged(each, replace) for name, each in tree.items()}
    return type(tree)(exchanged(each, replace) for each in tree) if isinstance(tree, list | tuple) else tree


def _alike_along(tensor: Tensor, axes: list[int]) -> bool:
    """Say whether codes lie in memory once along axes, as tokens do, so that these can be turned without a copy."""
    few = compact(tensor)
    return all(few.shape[axis] == 1 for axis in axes)

"""Tags of tensors that were turned or pooled, and tensors in arguments."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from structured_init.errors import StructuredInitError
from structured_init.watch import codes
from structured_init.watch.records import Tag

composed = cache(torch._ops.OpOverload._can_decompose)  # asked of every operation of a pass


def turned(tag: Tag) -> Tag:
    """Return the tag of a tensor whose last two axes change places."""
    return Tag(tag.codes.mT, None if tag.other is None else tag.other.mT, tag.path)


def pooled(before: Tensor, out: Tensor, args: tuple) -> Tensor | None:
    """Return the codes after tokens were pooled; ``None`` where channels were, as in the mean that a norm has."""
    few = codes.compact(before)
    if few.ndim > out.ndim and len(args) > 1 and isinstance(args[1], int | list | tuple):
        axes = sorted({axis % few.ndim for axis in ((args[1],) if isinstance(args[1], int) else args[1])}, reverse=True)
        same = all(few.shape[axis] == 1 or (few == few.narrow(axis, 0, 1)).all() for axis in axes)
        for axis in axes if same and few.ndim - len(axes) == out.ndim else ():
            few = few.select(axis, 0)
    alike = few.ndim == out.ndim and all(a in (1, b) for a, b in zip(few.shape, out.shape, strict=True))
    return few.expand(out.shape) if alike else None


def single(argument: object) -> bool:
    """Say whether an argument is a tensor of one number."""
    return isinstance(argument, Tensor) and argument.numel() == 1


def refuse_nested(args: tuple, result: object = None) -> None:
    """Refuse tensors of several lengths, whose numbers lie in no grid.

    Raises:
        StructuredInitError: an argument of an operation, or what it gave, is one.
    """
    if any(isinstance(each, Tensor) and each.is_nested for each in (*args, result)):
        raise StructuredInitError(
            "nested (jagged) tensors are not watched: give samples of one length as a plain tensor"
        )


def tensors(tree: object) -> list[Tensor]:
    """Return the tensors of a nest of arguments or results, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, list | tuple):
        return []
    return [leaf for each in tree for leaf in tensors(each)]

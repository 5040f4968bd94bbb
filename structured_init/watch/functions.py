"""What a function does to the numbers that it is given, told by the numbers and not by its name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

FEW = 256  # numbers that tell most functions from a factor
MANY = 1 << 16  # numbers on which a function is run once more


def proportional(x: Tensor, y: Tensor) -> bool:
    """Say whether y = c x for one number c: a clamp at a bound that nothing reaches, a cap that nothing comes near.

    Args:
        x: what a function was given.
        y: what it gave, of the same shape.
    """
    if x.numel() == 0 or not (x.is_floating_point() and y.is_floating_point()):
        return False
    return _proportional(_few(x), _few(y)) and _proportional(x.detach().flatten(), y.detach().flatten())


def _few(x: Tensor, count: int = FEW) -> Tensor:
    """Return the first numbers of a tensor; of one that lies in memory in another order, without a copy of it."""
    x = x.detach()
    while x.ndim > 1 and x[0].numel() >= count:
        x = x[0]
    return x[:count].flatten()[:count] if x.ndim else x.flatten()


def _proportional(x: Tensor, y: Tensor) -> bool:
    x, y = x.double(), y.double()
    factor = x.dot(y) / x.dot(x).clamp_min(torch.finfo(torch.float64).tiny)
    return bool((y - factor * x).norm() <= 1e-6 * y.norm()) and bool(factor > 0)


def pointwise(func: torch._ops.OpOverload, args: tuple, kwargs: dict[str, Any], result: Tensor) -> bool:
    """Say whether a function of one tensor makes each number from that number alone: it is run on them reversed.

    Args:
        func: an operation that was called.
        args: its arguments, a tensor first.
        kwargs: those by name.
        result: what it gave.
    """
    x, *others = args
    if kwargs or any(isinstance(other, Tensor) for other in others) or x.shape != result.shape:
        return False
    try:
        again = func(_few(x, MANY).flip(0), *others)
    except (RuntimeError, IndexError, TypeError):  # a function that needs the axes
        return False
    return torch.allclose(again.flip(0), _few(result, MANY), rtol=1e-4, atol=1e-6)  # vector units round on their own

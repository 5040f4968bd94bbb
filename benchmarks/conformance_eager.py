"""Are captured attention maps those of the host's own eager attention? Asked of hosts that show theirs."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import permutations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

EQUAL = 1e-4  # largest difference of two weights that counts as rounding
SOFTMAX = (F.softmax, Tensor.softmax, torch.softmax)
PRODUCTS = {"matmul", "__matmul__", "__rmatmul__", "bmm", "einsum"}


def eager_maps(model: nn.Module, args: tuple, kwargs: dict) -> list[Tensor]:
    """Return the attention maps that the host itself computes without a fused kernel; none where it shows none.

    transformers returns them (``output_attentions``) from a model that is built anew with eager attention and the same
    weights; of other hosts, what is multiplied with the values is taken, with fused attention switched off as timm does
    it.
    """
    if hasattr(model, "config") and hasattr(model, "main_input_name"):
        try:
            eager = type(model)._from_config(copy.deepcopy(model.config), attn_implementation="eager")
            eager.load_state_dict(model.state_dict())
            return list(_attentions(eager.eval()(*args, **kwargs, output_attentions=True)))
        except Exception:  # a host without this argument, or without this implementation
            return []
    fused = [module for module in model.modules() if getattr(module, "fused_attn", None) is True]
    for module in fused:
        module.fused_attn = False
    with _Factors() as seen:
        model(*args, **kwargs)
    return seen.maps()


class _Factors(TorchFunctionMode):
    """Keep the factors of the matrix products behind a softmax over the last axis that have as many numbers as it.

    What multiplies the values is among them: the softmax itself, or what the host makes of it by mixing heads
    (talking heads) or maps (ConViT). A factor of the same size that is no map may be too, and equals none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.softmax: dict[int, list[Tensor]] = {}  # numbers in it → what softmax gave
        self.ahead: dict[int, int] = {}  # numbers in it → how often it is still to be multiplied
        self.factors: tuple[list[Tensor], list[Tensor]] = ([], [])  # left and right ones

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func.__name__ in PRODUCTS:
            self._multiplied(func.__name__, [each for each in args if isinstance(each, Tensor)])
        result = func(*args, **(kwargs or {}))
        if func in SOFTMAX and result.ndim > 2:
            self.softmax.setdefault(result.numel(), []).append(result.detach().clone())
            self.ahead[result.numel()] = self.ahead.get(result.numel(), 0) + 1
        return result

    def _multiplied(self, product: str, tensors: list[Tensor]) -> None:
        sizes = {each.numel() for each in tensors if self.ahead.get(each.numel()) and each.ndim > 2}
        for place, each in enumerate(reversed(tensors) if product == "__rmatmul__" else tensors):
            if each.numel() in sizes:
                rows_are_summed = place == 1 and product != "einsum"
                self.factors[min(place, 1)].append((each.mT if rows_are_summed else each).detach().clone())
        for size in sizes:
            self.ahead[size] -= 1

    def maps(self) -> list[Tensor]:
        """Return the factors, and what softmax gave where nothing of its size was multiplied."""
        sizes = {each.numel() for each in (*self.factors[0], *self.factors[1])}
        left = [each for size, maps in self.softmax.items() if size not in sizes for each in maps]
        return [*self.factors[0], *self.factors[1], *left]


def _attentions(output: object) -> Iterator[Tensor]:
    """Yield the maps of an output of transformers, those of its parts too."""
    if isinstance(output, Tensor):
        if output.ndim > 2:
            yield output
    elif isinstance(output, tuple | list):
        for each in output:
            yield from _attentions(each)
    elif hasattr(output, "items"):
        for name, each in output.items():
            if name.endswith(("attentions", "output", "outputs")):
                yield from _attentions(each) if name.endswith("attentions") or not isinstance(each, Tensor) else ()


def compared(captured: dict[str, Tensor], eager: list[Tensor]) -> tuple[int, float]:
    """Return how many captured maps the host shows too, and the largest difference from them.

    A map is compared with those of as many numbers and keys that no other was compared with, and is the nearest of
    them. A column for a sink that the host shows besides is left out.
    """
    left, differences = [each.float() for each in eager], []
    for each in captured.values():
        errors = {run: _difference(other, each.float()) for run, other in _candidates(left, each.shape[1])}
        if errors and min(errors.values()) < float("inf"):
            best = min(errors, key=errors.__getitem__)
            differences.append(errors[best])
            del left[slice(*best)]
    return len(differences), max(differences, default=0.0)


def _candidates(maps: list[Tensor], heads: int) -> Iterator[tuple[tuple[int, int], Tensor]]:
    """Yield every map by its place, and runs of as many maps of one head as there are heads, as one."""
    for place, each in enumerate(maps):
        yield (place, place + 1), each
        run = maps[place : place + heads]
        if heads > 1 and each.ndim == 3 and [other.shape for other in run] == heads * [each.shape]:
            yield (place, place + heads), torch.stack(run, 1)


def _difference(eager: Tensor, captured: Tensor) -> float:
    """Return the largest difference of two maps, whatever order samples, windows and heads have; ∞ of other sizes."""
    if eager.shape[-1] == captured.shape[-1] + 1:
        eager = eager[..., :-1]
    if eager.shape[-1] != captured.shape[-1] or eager.numel() != captured.numel():
        return float("inf")
    eager = eager.reshape(*_leading(eager, captured), *captured.shape[-2:]).to(captured.device)
    axes = range(eager.ndim - 2)
    orders = (eager.permute(*order, -2, -1).reshape(captured.shape) for order in permutations(axes))
    return min(float((order - captured).abs().max()) for order in orders)


def _leading(eager: Tensor, captured: Tensor) -> tuple[int, ...]:
    """Return the axes in front of queries and keys; of one alone, samples (or windows) and heads."""
    sizes = list(eager.shape[:-2])
    while sizes and eager.shape[-2] != captured.shape[-2] and torch.Size(sizes).numel() != captured.shape[:2].numel():
        sizes.pop()  # queries that the host keeps on several axes
    return tuple(sizes) if len(sizes) > 1 else tuple(captured.shape[:2])

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


def eager_maps(model: nn.Module, args: tuple, kwargs: dict) -> list[Tensor]:
    """Return the attention maps that the host itself computes without a fused kernel; none where it shows none.

    transformers returns them (``output_attentions``) from a model that is built anew with eager attention and the same
    weights; of other hosts, what ``softmax`` gives is taken, with fused attention switched off as timm does it.
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
    with _Softmax() as seen:
        model(*args, **kwargs)
    return seen.maps


class _Softmax(TorchFunctionMode):
    """Keep what softmax gives over the last axis of a tensor of at least three axes."""

    def __init__(self) -> None:
        super().__init__()
        self.maps: list[Tensor] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in SOFTMAX and result.ndim > 2:
            self.maps.append(result.detach().clone())
        return result


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
        errors = [_difference(other, each.float()) for other in left]
        if errors and min(errors) < float("inf"):
            best = min(range(len(errors)), key=errors.__getitem__)
            differences.append(errors[best])
            left.pop(best)
    return len(differences), max(differences, default=0.0)


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

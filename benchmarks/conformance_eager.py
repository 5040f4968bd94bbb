"""Are captured attention maps those of the host's own eager attention? Asked of hosts that show theirs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

EQUAL = 1e-4  # largest difference of two weights that counts as rounding
SOFTMAX = (F.softmax, Tensor.softmax, torch.softmax)


def eager_maps(model: nn.Module, args: tuple, kwargs: dict) -> list[Tensor]:
    """Return the attention maps that the host itself computes without a fused kernel; none where it shows none.

    transformers returns them (``output_attentions``); of other hosts, what ``softmax`` gives is taken, with fused
    attention switched off as timm does it.
    """
    if hasattr(model, "config") and hasattr(model, "main_input_name"):
        with contextlib.suppress(Exception):
            model.set_attn_implementation("eager")
        try:
            return list(_attentions(model(*args, **kwargs, output_attentions=True)))
        except Exception:  # a host without this argument
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
        alike = [_as(other, each) for other in left]
        errors = [float("inf") if other is None else float((other - each).abs().max()) for other in alike]
        if errors and min(errors) < float("inf"):
            best = min(range(len(errors)), key=errors.__getitem__)
            differences.append(errors[best])
            left.pop(best)
    return len(differences), max(differences, default=0.0)


def _as(eager: Tensor, captured: Tensor) -> Tensor | None:
    """Return a host's map in the shape of a captured one; ``None`` where it has other numbers."""
    if eager.shape[-1] == captured.shape[-1] + 1:
        eager = eager[..., :-1]
    same = eager.shape[-1] == captured.shape[-1] and eager.numel() == captured.numel()
    return eager.reshape(captured.shape).to(captured.device) if same else None

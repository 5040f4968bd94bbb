"""What the Cayley layers share: a scale apart from the direction, precision, and a matrix kept for evaluation."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn

from structured_init.errors import StructuredInitError


class CayleyLayer(nn.Module):
    """A layer whose matrices are cayley(α W/‖W‖): the Cayley transform depends on scale, so scale has its own weight.

    In evaluation mode the matrices are made once and kept. They are made anew when a weight, the input's size, the
    precision or the device changes: on the CPU the weights are compared by value, on an accelerator, which would have
    to be waited for, by version and address (a write through ``.data`` is then seen at the next ``train()`` or
    ``eval()``). Where a gradient of the weights may be wanted they are never taken from what is kept: an attack in
    evaluation mode is faster with ``requires_grad_(False)``.

    Subclasses set ``weight``, ``alpha`` and ``bias``.
    """

    weight: nn.Parameter
    alpha: nn.Parameter

    def __init__(self) -> None:
        super().__init__()
        self._kept: tuple[Hashable, tuple[Tensor, ...], Tensor] | None = None

    def precision(self, inputs: Tensor) -> torch.dtype:
        """Return the dtype to compute in: float32 or better.

        Raises:
            StructuredInitError: the parameters are float16, in which neither transform nor inverse holds.
        """
        if torch.float16 in (self.weight.dtype, self.alpha.dtype):
            name = type(self).__name__
            raise StructuredInitError(f"{name}: parameters are float16; keep them in float32, autocast may stay on")
        dtype = torch.promote_types(self.weight.dtype, torch.float32)
        return torch.promote_types(dtype, inputs.dtype) if inputs.is_floating_point() else dtype

    def direction(self, dtype: torch.dtype) -> Tensor:
        """Return α W/‖W‖ in the given precision."""
        weight = self.weight.to(dtype)
        return weight * (self.alpha.to(dtype) / self.norm(weight))

    def norm(self, weight: Tensor) -> Tensor:
        """Return ‖W‖, and the smallest number where all weights are zero."""
        return weight.norm().clamp_min(torch.finfo(weight.dtype).tiny)

    @property
    def may_keep(self) -> bool:
        """Whether this forward may use matrices made before."""
        wants_gradient = torch.is_grad_enabled() and (self.weight.requires_grad or self.alpha.requires_grad)
        return not self.training and not wants_gradient

    def kept(self, *wanted: Any) -> Tensor:
        """Return ``self.matrices(*wanted)``, made now or before."""
        weights = (self.weight, self.alpha)
        key = (*wanted, *((w.device, w.dtype, w.data_ptr(), _version(w)) for w in weights))
        if self._kept is None or self._kept[0] != key or not all(map(torch.equal, self._kept[1], weights)):
            # Outside of inference mode, so that a later forward with gradients of its input can use the matrices.
            with torch.inference_mode(False), torch.no_grad():
                copies = tuple(weight.detach().clone() for weight in weights) if _on_cpu(weights) else ()
                self._kept = (key, copies, self.matrices(*wanted))
        return self._kept[2]

    def matrices(self, *wanted: Any) -> Tensor:
        """Return the orthogonal matrices of the present weights."""
        raise NotImplementedError

    def train(self, mode: bool = True) -> CayleyLayer:
        """Change the mode and let go of what was kept."""
        self._kept = None
        return super().train(mode)

    def _apply(self, *args: Any, **kwargs: Any) -> CayleyLayer:
        self._kept = None
        return super()._apply(*args, **kwargs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        self._kept = None
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}  # copies and files hold weights only


def _on_cpu(tensors: tuple[Tensor, ...]) -> bool:
    return all(tensor.device.type == "cpu" for tensor in tensors)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version

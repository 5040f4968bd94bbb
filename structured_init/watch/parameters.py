"""Which entries of which parameter a tensor is that shares its memory: told by addresses and strides alone."""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from structured_init.watch.records import Block


class ParameterViews:
    """The parameters of a model by the memory that they lie in.

    Args:
        model: whose parameters.
    """

    def __init__(self, model: nn.Module) -> None:
        self._storages: dict[int, list[nn.Parameter]] = {}
        for parameter in model.parameters():
            self._storages.setdefault(parameter.untyped_storage().data_ptr(), []).append(parameter)

    def parameter(self, tensor: Tensor) -> nn.Parameter | None:
        """Return the parameter that a tensor is, or is a view of."""
        offset = tensor.storage_offset()
        for owner in self._storages.get(tensor.untyped_storage().data_ptr(), ()):
            if owner.storage_offset() <= offset < owner.storage_offset() + max(owner.numel(), 1):
                return owner
        return None

    def entries(self, tensor: Tensor, parameter: nn.Parameter) -> Int64[Tensor, ...]:
        """Return for every number of a view its index in the parameter."""
        index = torch.full((), tensor.storage_offset() - parameter.storage_offset(), device=tensor.device)
        for size, step in zip(tensor.shape, tensor.stride(), strict=True):
            index = index[..., None] + torch.arange(size, device=tensor.device) * step
        return index

    def rows(self, table: Tensor, parameter: nn.Parameter, numbers: Tensor) -> Int64[Tensor, ...]:
        """Return the same of some rows of a table alone: a vocabulary has many more than are asked for."""
        places = torch.arange(table.shape[1], device=table.device) * table.stride(1)
        return table.storage_offset() - parameter.storage_offset() + numbers[..., None] * table.stride(0) + places

    def block(self, tensor: Tensor) -> Block | None:
        """Return the block that a matrix (…, I, O) is; ``None`` where it is no view of a parameter."""
        parameter = self.parameter(tensor)
        if parameter is None:
            return None
        device, (inputs, outputs) = tensor.device, tensor.shape[-2:]
        starts = torch.arange(outputs, device=device) * tensor.stride(-1)
        if tensor.ndim == 3:
            starts = starts + torch.arange(len(tensor), device=device)[:, None] * tensor.stride(0)
        starts = starts + tensor.storage_offset() - parameter.storage_offset()
        return Block(parameter, starts.view(-1, outputs), torch.arange(inputs, device=device) * tensor.stride(-2))

"""Activations that sort: 1-Lipschitz, and with a gradient of the same norm as the one that comes in."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from structured_init.errors import StructuredInitError


class MaxMin(nn.Module):
    """The larger and the smaller of channel i and channel i + C/2: cat[max(a, b), min(a, b)] of the two halves.

    The channels are the axis ``dim``; the shape stays, and an odd number of them is refused.

    Source: locuslab/orthogonal-convolutions, ``layers.py``, ``GroupSort``; Anil, Lucas & Grosse 2019.
    """

    def __init__(self, dim: int = 1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, inputs: Tensor) -> Tensor:
        channels = inputs.shape[self.dim]
        if channels % 2:
            raise StructuredInitError(f"MaxMin needs an even number of channels, got {channels}")
        first, second = inputs.chunk(2, dim=self.dim)
        return torch.cat([torch.maximum(first, second), torch.minimum(first, second)], dim=self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class GroupSort(nn.Module):
    """Every group of neighbouring channels in ascending order.

    A group has ``group_size`` channels, at least 2; the channels are the axis ``dim``. The shape stays, and groups that
    do not divide the channels are refused.

    Source: Anil, Lucas & Grosse, "Sorting out Lipschitz function approximation", 2019.
    """

    def __init__(self, group_size: int = 2, dim: int = 1) -> None:
        super().__init__()
        if group_size < 2:
            raise StructuredInitError(f"GroupSort: group_size must be at least 2, got {group_size}")
        self.group_size, self.dim = group_size, dim

    def forward(self, inputs: Tensor) -> Tensor:
        channels = inputs.shape[self.dim]
        if channels % self.group_size:
            raise StructuredInitError(f"GroupSort: groups of {self.group_size} do not divide {channels} channels")
        dim = self.dim % inputs.ndim
        groups = inputs.unflatten(dim, (channels // self.group_size, self.group_size))
        return groups.sort(dim=dim + 1).values.flatten(dim, dim + 1)

    def extra_repr(self) -> str:
        return f"group_size={self.group_size}, dim={self.dim}"

"""An activation that sorts: 1-Lipschitz, and with a gradient of the same norm as the one that comes in."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from structured_init.util.errors import StructuredInitError


class MaxMin(nn.Module):
    """The larger and the smaller of channel i and channel i + C/2: cat[max(a, b), min(a, b)] of the two halves.

    The channels are the second axis; the shape stays, and an odd number of them is refused.

    Source: locuslab/orthogonal-convolutions, ``layers.py``, ``GroupSort``; Anil, Lucas & Grosse 2019.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        channels = inputs.shape[1]
        if channels % 2:
            raise StructuredInitError(f"MaxMin needs an even number of channels, got {channels}")
        first, second = inputs.chunk(2, dim=1)
        return torch.cat([torch.maximum(first, second), torch.minimum(first, second)], dim=1)

"""What 1-Lipschitz networks need between their layers: residual sums, pooling, a normalized last layer.

Letters: B batch, C channels, H height, W width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from structured_init.analysis.lipschitz import register_lipschitz
from structured_init.analysis.lipschitz_rules import Bounds, rounding


class ConvexResidual(nn.Module):
    """σ(gate)·shortcut(x) + (1 − σ(gate))·body(x): its constant is at most the same mean of the two constants.

    Args:
        body: changes no shape that ``shortcut`` does not change alike.
        shortcut: None for x itself.
        gate: start of the trained gate.

    Source: locuslab/orthogonal-convolutions (``ConvexCombo``; gate .5 in ResNet9, 0 in the wide residual network).
    """

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None, gate: float = 0.5) -> None:
        super().__init__()
        self.body = body
        self.shortcut = nn.Identity() if shortcut is None else shortcut
        self.gate = nn.Parameter(torch.tensor(float(gate)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.lerp(self.body(x), self.shortcut(x), self.gate.sigmoid())


@register_lipschitz(ConvexResidual)
def _convex_residual(module: ConvexResidual, bounds: Bounds) -> float:
    share = module.gate.detach().double().sigmoid().item()
    mean = share * bounds(module.shortcut) + (1 - share) * bounds(module.body)
    return mean * rounding(module.gate.dtype, 4)


class NormPreservingPool(nn.Module):
    """Sum over size × size windows, divided by ``size``: the mean would shrink a constant image ``size`` times.

    Each output is (1, …, 1)/size times a window of its own, a unit vector, so the constant is exactly 1.

    Args:
        size: side of the windows, which do not overlap.
    """

    def __init__(self, size: int = 2) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, self.size, divisor_override=self.size)

    def extra_repr(self) -> str:
        return f"size={self.size}"


@register_lipschitz(NormPreservingPool)
def _norm_preserving_pool(module: NormPreservingPool, bounds: Bounds) -> float:
    return rounding(torch.float32, module.size**2)


class _UnitRows(nn.Module):
    """Rows divided by their L2 norms."""

    def forward(self, weight: Tensor) -> Tensor:
        return F.normalize(weight, dim=1)


def unit_row_linear(in_features: int, out_features: int) -> nn.Linear:
    """Return a linear layer whose rows have norm 1, for certificates that know its rows.

    Each logit by itself is 1-Lipschitz, the layer as a whole is not: use it last, with ``certificate: last_layer``.

    Source: Singla et al. 2022 (2108.04062), "last layer normalization".
    """
    layer = nn.Linear(in_features, out_features)
    parametrize.register_parametrization(layer, "weight", _UnitRows())
    return layer

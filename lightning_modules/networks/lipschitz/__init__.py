"""1-Lipschitz networks by name, for certified robustness."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from lightning_modules.networks.lipschitz.networks import choose, kw_large, resnet9, wide_resnet
from lightning_modules.networks.lipschitz.parts import ConvexResidual, NormPreservingPool

LIPSCHITZ_NETWORKS: dict[str, Callable[..., nn.Sequential]] = {
    "kw_large": kw_large,
    "resnet9": resnet9,
    "wide_resnet_10_10": wide_resnet,
}

__all__ = ["LIPSCHITZ_NETWORKS", "ConvexResidual", "NormPreservingPool", "choose", "kw_large", "resnet9", "wide_resnet"]

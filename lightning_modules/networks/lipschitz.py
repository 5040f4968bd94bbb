"""1-Lipschitz networks by name, for certified robustness: KWLarge and ResNet9 of Cayley layers.

Letters: B batch, C channels, H height, W width.

Source: Trockman & Kolter 2021 (2104.07167); the sizes are those of locuslab/orthogonal-convolutions, models.py. KWLarge
comes from Wong & Kolter (1711.00851, "large").
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from structured_init.analysis.lipschitz import lipschitz_bound, register_lipschitz, rounding
from structured_init.layers import CayleyConv2d, CayleyLinear, MaxMin
from structured_init.util.arguments import check_known
from structured_init.util.errors import StructuredInitError

KERNEL = 3  # of every convolution
KINDS = ("cayley", "orthogonium", "plain")


class ConvexResidual(nn.Module):
    """σ(gate)·shortcut(x) + (1 − σ(gate))·body(x): its constant is at most the same mean of the two constants.

    Both change the shape alike; the gate is trained, from the one given.

    Source: locuslab/orthogonal-convolutions (``ConvexCombo``; gate .5 in ResNet9).
    """

    def __init__(self, body: nn.Module, shortcut: nn.Module, gate: float) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut
        self.gate = nn.Parameter(torch.tensor(float(gate)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.lerp(self.body(x), self.shortcut(x), self.gate.sigmoid())


@register_lipschitz(ConvexResidual)
def convex_residual(module: ConvexResidual, inputs: Tensor) -> float:
    share = module.gate.double().sigmoid().item()
    mean = share * lipschitz_bound(module.shortcut, inputs) + (1 - share) * lipschitz_bound(module.body, inputs)
    return mean * rounding(module.gate.dtype, 4)


class NormPreservingPool(nn.Module):
    """Sum over size × size windows, divided by ``size``: the mean would shrink a constant image ``size`` times.

    Each output is (1, …, 1)/size times a window of its own, a unit vector, so the constant is exactly 1.
    """

    def __init__(self, size: int = 2) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, self.size, divisor_override=self.size)

    def extra_repr(self) -> str:
        return f"size={self.size}"


@register_lipschitz(NormPreservingPool)
def norm_preserving_pool(module: NormPreservingPool, inputs: Tensor) -> float:
    return rounding(torch.float32, module.size**2)


class Layers:
    """The layers of a network: their kind, ``cayley``, ``orthogonium`` or ``plain``, and how many channels."""

    def __init__(self, kind: str, width: float) -> None:
        check_known("conv", kind, KINDS)
        if not width > 0:
            raise StructuredInitError(f"width must be a positive factor, not {width}")
        self.width = width
        same_size = {"padding": KERNEL // 2, "padding_mode": "circular"}
        self.convolution: Callable[..., nn.Module] = CayleyConv2d
        self.linear: Callable[[int, int], nn.Module] = CayleyLinear
        if kind == "plain":
            self.convolution, self.linear = partial(nn.Conv2d, **same_size), nn.Linear
        if kind == "orthogonium":
            try:
                from orthogonium.layers import AdaptiveOrthoConv2d, OrthoLinear
            except ImportError as error:
                raise StructuredInitError(
                    "the layers of 'orthogonium' need the extra 'robust': pip install 'structured-init[robust]'"
                ) from error
            self.convolution, self.linear = partial(AdaptiveOrthoConv2d, **same_size), OrthoLinear

    def conv(self, in_channels: int, out_channels: int, stride: int = 1) -> nn.Module:
        return self.convolution(in_channels, out_channels, KERNEL, stride=stride)

    def channels(self, published: int) -> int:
        """Return a published number of channels times the width, even for MaxMin."""
        return max(2, 2 * round(published * self.width / 2))


def kw_large(layers: Layers, num_classes: int, image_size: int, in_channels: int) -> nn.Sequential:
    """Build KWLarge: four convolutions, two of them with stride 2, and three linear layers."""
    c32, c64, c512 = layers.channels(32), layers.channels(64), layers.channels(512)
    return nn.Sequential(
        layers.conv(in_channels, c32), MaxMin(),
        layers.conv(c32, c32, stride=2), MaxMin(),
        layers.conv(c32, c64), MaxMin(),
        layers.conv(c64, c64, stride=2), MaxMin(),
        nn.Flatten(),
        layers.linear(c64 * (image_size // 4) ** 2, c512), MaxMin(),
        layers.linear(c512, c512), MaxMin(),
        layers.linear(c512, num_classes),
    )  # fmt: skip


def resnet9(layers: Layers, num_classes: int, image_size: int, in_channels: int) -> nn.Sequential:
    """Build ResNet9: eight convolutions, four of them in two residual pairs, and two linear layers."""
    c64, c128, c256, c512 = (layers.channels(published) for published in (64, 128, 256, 512))
    return nn.Sequential(
        layers.conv(in_channels, c64), MaxMin(),
        layers.conv(c64, c128), MaxMin(), NormPreservingPool(),
        residual_pair(layers, c128),
        layers.conv(c128, c256), MaxMin(), NormPreservingPool(),
        layers.conv(c256, c512), MaxMin(), NormPreservingPool(),
        residual_pair(layers, c512),
        NormPreservingPool(), nn.Flatten(),
        layers.linear(c512 * (image_size // 16) ** 2, c512), MaxMin(),
        layers.linear(c512, num_classes),
    )  # fmt: skip


def residual_pair(layers: Layers, channels: int) -> ConvexResidual:
    body = nn.Sequential(layers.conv(channels, channels), MaxMin(), layers.conv(channels, channels), MaxMin())
    return ConvexResidual(body, nn.Identity(), gate=0.5)


# Name → what builds it, and what the side of its images is a multiple of.
LIPSCHITZ_NETWORKS: dict[str, tuple[Callable[..., nn.Sequential], int]] = {
    "kw_large": (kw_large, 4),
    "resnet9": (resnet9, 16),
}


def lipschitz_network(
    name: str,
    *,
    num_classes: int = 10,
    image_size: int = 32,
    in_channels: int = 3,
    conv: str = "cayley",
    width: float = 1.0,
) -> nn.Sequential:
    """Build a network of :data:`LIPSCHITZ_NETWORKS`.

    Args:
        name: of the network.
        num_classes: outputs.
        image_size: side of the square image in pixels, a multiple of 4 for KWLarge and of 16 for ResNet9.
        in_channels: channels of the image.
        conv: kind of all layers: ``cayley``, ``orthogonium`` (AOC: an explicit kernel, extra ``[robust]``) or ``plain``
            (torch's, circular), which has a constant of its own.
        width: all hidden channels are multiplied by it; 1 is as published.

    Raises:
        StructuredInitError: an unknown kind or one whose library is not installed, a width or an image that does not
            fit.
    """
    build, divisor = LIPSCHITZ_NETWORKS[name]
    if image_size % divisor:
        raise StructuredInitError(f"'{name}' takes images whose side is a multiple of {divisor}, not {image_size}")
    return build(Layers(conv, width), num_classes, image_size, in_channels)


__all__ = ["LIPSCHITZ_NETWORKS", "ConvexResidual", "NormPreservingPool", "lipschitz_network"]

"""KWLarge, ResNet9 and WideResNet10-10 of 1-Lipschitz parts.

Letters: B batch, C channels, H height, W width.

Source: Trockman & Kolter 2021 (2104.07167); the sizes are those of locuslab/orthogonal-convolutions, models.py. KWLarge
comes from Wong & Kolter (1711.00851, "large").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from lightning_modules.networks.lipschitz.choices import (
    Activation,
    Convolution,
    Linear,
    activation_by,
    convolution_by,
    linear_by,
)
from lightning_modules.networks.lipschitz.parts import ConvexResidual, NormPreservingPool, unit_row_linear
from structured_init.errors import StructuredInitError


@dataclass(frozen=True)
class _Parts:
    """What a network is built of, and how wide."""

    conv: Convolution
    linear: Linear
    activation: Activation
    last: Linear
    width: float

    def channels(self, published: int) -> int:
        """Return a published number of channels times the width, even for MaxMin."""
        return max(2, 2 * round(published * self.width / 2))


def kw_large(*, num_classes: int = 10, image_size: int = 32, in_channels: int = 3, **choices: Any) -> nn.Sequential:
    """Build KWLarge: four convolutions, two of them with stride 2, and three linear layers.

    Args:
        num_classes: outputs.
        image_size: side of the square image; a multiple of 4.
        in_channels: channels of the image.
        choices: those of :func:`choose`.
    """
    _divides("kw_large", 4, image_size)
    p = choose(**choices)
    c32, c64, c512 = p.channels(32), p.channels(64), p.channels(512)
    return nn.Sequential(
        p.conv(in_channels, c32, 3), p.activation(),
        p.conv(c32, c32, 3, stride=2), p.activation(),
        p.conv(c32, c64, 3), p.activation(),
        p.conv(c64, c64, 3, stride=2), p.activation(),
        nn.Flatten(),
        p.linear(c64 * (image_size // 4) ** 2, c512), p.activation(),
        p.linear(c512, c512), p.activation(),
        p.last(c512, num_classes),
    )  # fmt: skip


def resnet9(*, num_classes: int = 10, image_size: int = 32, in_channels: int = 3, **choices: Any) -> nn.Sequential:
    """Build ResNet9: eight convolutions, four of them in two residual pairs, and two linear layers.

    Args:
        num_classes: outputs.
        image_size: side of the square image; a multiple of 16.
        in_channels: channels of the image.
        choices: those of :func:`choose`.
    """
    _divides("resnet9", 16, image_size)
    p = choose(**choices)
    c64, c128, c256, c512 = (p.channels(published) for published in (64, 128, 256, 512))
    return nn.Sequential(
        p.conv(in_channels, c64, 3), p.activation(),
        p.conv(c64, c128, 3), p.activation(), NormPreservingPool(),
        _residual_pair(p, c128),
        p.conv(c128, c256, 3), p.activation(), NormPreservingPool(),
        p.conv(c256, c512, 3), p.activation(), NormPreservingPool(),
        _residual_pair(p, c512),
        NormPreservingPool(), nn.Flatten(),
        p.linear(c512 * (image_size // 16) ** 2, c512), p.activation(),
        p.last(c512, num_classes),
    )  # fmt: skip


def wide_resnet(
    *,
    depth: int = 10,
    widen_factor: int = 10,
    num_classes: int = 10,
    image_size: int = 32,
    in_channels: int = 3,
    **choices: Any,
) -> nn.Sequential:
    """Build a wide residual network; the published one has depth 10 and is 10 times wider than its first layer.

    Args:
        depth: 6 n + 4 for n blocks at each of three sizes.
        widen_factor: channels of the three sizes are 16, 32 and 64 times it.
        num_classes: outputs.
        image_size: side of the square image; a multiple of 16.
        in_channels: channels of the image.
        choices: those of :func:`choose`.
    """
    _divides("wide_resnet_10_10", 16, image_size)
    if depth < 10 or (depth - 4) % 6:
        raise StructuredInitError(f"depth {depth} of 'wide_resnet_10_10' must be one of 10, 16, 22, …")
    p = choose(**choices)
    first = p.channels(16)
    widths = [p.channels(16 * widen_factor * 2**group) for group in range(3)]
    blocks: list[nn.Module] = []
    channels = first
    for group, width in enumerate(widths):
        for block in range((depth - 4) // 6):
            blocks.append(_wide_block(p, channels, width, pooled=group > 0 and block == 0))
            channels = width
    return nn.Sequential(
        p.conv(in_channels, first, 3), *blocks, p.activation(),
        NormPreservingPool(4), nn.Flatten(),
        p.linear(channels * (image_size // 16) ** 2, channels), p.activation(),
        p.last(channels, num_classes),
    )  # fmt: skip


def choose(
    *,
    conv: str = "cayley",
    conv_args: Mapping[str, Any] | None = None,
    linear: str | None = None,
    activation: str = "max_min",
    width: float = 1.0,
    unit_rows: bool = False,
) -> _Parts:
    """Return the parts of a network.

    Args:
        conv: ``cayley``, ``orthogonium``, ``plain`` or a class path.
        conv_args: further arguments of the convolution.
        linear: ``cayley``, ``orthogonium``, ``plain`` or a class path; None for the convolution's family.
        activation: ``max_min``, ``group_sort``, ``relu`` or a class path.
        width: all hidden channels are multiplied by it; 1 is as published.
        unit_rows: normalize the rows of the last layer instead of making it orthogonal.

    Raises:
        StructuredInitError: a name is unknown, or the width is not positive.
    """
    if not width > 0:
        raise StructuredInitError(f"width must be a positive factor, not {width}")
    layer = linear_by(linear, conv)
    last = unit_row_linear if unit_rows else layer
    return _Parts(convolution_by(conv, conv_args), layer, activation_by(activation), last, width)


def _residual_pair(p: _Parts, channels: int) -> ConvexResidual:
    layers = [p.conv(channels, channels, 3), p.activation(), p.conv(channels, channels, 3), p.activation()]
    return ConvexResidual(nn.Sequential(*layers), gate=0.5)


def _wide_block(p: _Parts, in_channels: int, out_channels: int, *, pooled: bool) -> nn.Module:
    """Return a block with the activation first, shared by both branches where the shortcut is a convolution."""
    pool = [NormPreservingPool()] if pooled else []
    body = [p.conv(in_channels, out_channels, 3), *pool, p.activation(), p.conv(out_channels, out_channels, 3)]
    if in_channels == out_channels:
        return ConvexResidual(nn.Sequential(p.activation(), *body), gate=0.0)
    shortcut = nn.Sequential(p.conv(in_channels, out_channels, 3), *pool)
    return nn.Sequential(p.activation(), ConvexResidual(nn.Sequential(*body), shortcut, gate=0.0))


def _divides(name: str, divisor: int, image_size: int) -> None:
    if image_size % divisor:
        raise StructuredInitError(f"'{name}' takes images whose side is a multiple of {divisor}, not {image_size}")

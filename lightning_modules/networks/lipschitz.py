"""1-Lipschitz networks by name, for certified robustness: KWLarge, ResNet9 and WideResNet10-10 of Cayley layers.

Letters: B batch, C channels, H height, W width.

Source: Trockman & Kolter 2021 (2104.07167); the sizes are those of locuslab/orthogonal-convolutions, models.py. KWLarge
comes from Wong & Kolter (1711.00851, "large").
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from structured_init.analysis.lipschitz import Bounds, register_lipschitz, rounding
from structured_init.errors import StructuredInitError, nearest
from structured_init.layers import CayleyConv2d, CayleyLinear, GroupSort, MaxMin

Convolution = Callable[..., nn.Module]  # (in_channels, out_channels, kernel_size, stride=…)
Linear = Callable[[int, int], nn.Module]
Activation = Callable[[], nn.Module]


def _circular(layer: Convolution) -> Convolution:
    """Let a convolution of torch's interface keep the size and have the border of the others."""

    def build(in_channels: int, out_channels: int, kernel_size: int, stride: int, **arguments: Any) -> nn.Module:
        same_size = {"padding": kernel_size // 2, "padding_mode": "circular", **arguments}
        return layer(in_channels, out_channels, kernel_size, stride, **same_size)

    return build


def _orthogonium(layer: str) -> Any:
    try:
        return getattr(importlib.import_module("orthogonium.layers"), layer)
    except ImportError as error:
        raise StructuredInitError(
            "the layers of 'orthogonium' need the extra 'robust': pip install 'structured-init[robust]'"
        ) from error


# What builds a layer, by its name; the libraries of other names are not asked for. ``plain`` is unconstrained, with a
# constant of its own.
CONVOLUTIONS: dict[str, Callable[[], Convolution]] = {
    "cayley": lambda: CayleyConv2d,
    "orthogonium": lambda: _circular(_orthogonium("AdaptiveOrthoConv2d")),
    "plain": lambda: _circular(nn.Conv2d),
}
LINEAR: dict[str, Callable[[], Linear]] = {
    "cayley": lambda: CayleyLinear,
    "orthogonium": lambda: _orthogonium("OrthoLinear"),
    "plain": lambda: nn.Linear,
}
ACTIVATIONS: dict[str, Callable[[], Activation]] = {
    "max_min": lambda: MaxMin,
    "group_sort": lambda: GroupSort,
    "relu": lambda: nn.ReLU,
}


def _by_name(what: str, name: str, known: Mapping[str, Callable[[], Any]]) -> Any:
    """Return what a name or a class path stands for."""
    if name in known:
        return known[name]()
    module, _, cls = name.rpartition(".")
    if not module:
        raise StructuredInitError(f"unknown {what} '{name}': {nearest(name, known)}")
    try:
        return getattr(importlib.import_module(module), cls)
    except (ImportError, AttributeError) as error:
        raise StructuredInitError(f"{what} '{name}' cannot be imported: {error}") from error


class ConvexResidual(nn.Module):
    """σ(gate)·shortcut(x) + (1 − σ(gate))·body(x): its constant is at most the same mean of the two constants.

    Both change the shape alike; without a shortcut it is x itself. The gate is trained, from the one given.

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
    """Build KWLarge: four convolutions, two of them with stride 2, and three linear layers; choices are of `choose`."""
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
    """Build ResNet9: eight convolutions, four of them in two residual pairs, and two linear layers."""
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

    The depth is 6 n + 4 for n blocks at each of three sizes, whose channels are 16, 32 and 64 times ``widen_factor``;
    the side of the image is a multiple of 16; choices are of :func:`choose`.
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
        conv: ``cayley``, ``orthogonium`` (AOC: an explicit kernel, extra ``[robust]``), ``plain`` (torch's, circular),
            or a class path, which is called alike; the layer divides height and width by its stride.
        conv_args: further arguments of the convolution.
        linear: ``cayley``, ``orthogonium``, ``plain`` or a class path; None for the convolution's family,
            ``cayley`` where the convolution is given by its class path.
        activation: ``max_min`` as published, ``group_sort``, ``relu`` or a class path.
        width: all hidden channels are multiplied by it; 1 is as published.
        unit_rows: normalize the rows of the last layer instead of making it orthogonal.

    Raises:
        StructuredInitError: a name is unknown or its library not installed, or the width is not positive.
    """
    if not width > 0:
        raise StructuredInitError(f"width must be a positive factor, not {width}")
    convolution = _by_name("conv", conv, CONVOLUTIONS)
    layer = _by_name("linear", linear or (conv if conv in LINEAR else "cayley"), LINEAR)
    return _Parts(
        conv=lambda *sizes, stride=1: convolution(*sizes, stride=stride, **(conv_args or {})),
        linear=layer,
        activation=_by_name("activation", activation, ACTIVATIONS),
        last=unit_row_linear if unit_rows else layer,
        width=width,
    )


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


LIPSCHITZ_NETWORKS: dict[str, Callable[..., nn.Sequential]] = {
    "kw_large": kw_large,
    "resnet9": resnet9,
    "wide_resnet_10_10": wide_resnet,
}

__all__ = ["LIPSCHITZ_NETWORKS", "ConvexResidual", "NormPreservingPool", "choose", "kw_large", "resnet9", "wide_resnet"]

"""A 1-Lipschitz network by name, for certified robustness: KWLarge of Cayley layers.

Source: Trockman & Kolter 2021 (2104.07167); the sizes are those of locuslab/orthogonal-convolutions, models.py. KWLarge
comes from Wong & Kolter (1711.00851, "large").
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from structured_init.layers import CayleyConv2d, CayleyLinear, MaxMin
from structured_init.util.arguments import check_known
from structured_init.util.errors import StructuredInitError

KERNEL = 3  # of every convolution
KINDS = ("cayley", "orthogonium", "plain")


LIPSCHITZ_NETWORKS = ("kw_large",)


def layers_of_kind(kind: str) -> tuple[Callable[..., nn.Module], Callable[[int, int], nn.Module]]:
    """Return what builds a circular convolution that keeps the size, and a linear layer; refuse an unknown kind."""
    check_known("conv", kind, KINDS)
    same_size = {"padding": KERNEL // 2, "padding_mode": "circular"}
    if kind == "cayley":
        return CayleyConv2d, CayleyLinear
    if kind == "plain":
        return partial(nn.Conv2d, **same_size), nn.Linear
    try:
        from orthogonium.layers import AdaptiveOrthoConv2d, OrthoLinear
    except ImportError as error:
        raise StructuredInitError(
            "the layers of 'orthogonium' need the extra 'robust': pip install 'structured-init[robust]'"
        ) from error
    return partial(AdaptiveOrthoConv2d, **same_size), OrthoLinear


def lipschitz_network(
    *,
    num_classes: int = 10,
    image_size: int = 32,
    in_channels: int = 3,
    conv: str = "cayley",
    width: float = 1.0,
) -> nn.Sequential:
    """Build KWLarge: four convolutions, two of them with stride 2, and three linear layers.

    Args:
        num_classes: outputs.
        image_size: side of the square image in pixels, a multiple of 4.
        in_channels: channels of the image.
        conv: kind of all layers: ``cayley``, ``orthogonium`` (AOC: an explicit kernel, extra ``[robust]``) or ``plain``
            (torch's, circular), which has a constant of its own.
        width: all hidden channels are multiplied by it; 1 is as published.

    Raises:
        StructuredInitError: an unknown kind or one whose library is not installed, a width or an image that does not
            fit.
    """
    convolution, linear = layers_of_kind(conv)
    if not width > 0:
        raise StructuredInitError(f"width must be a positive factor, not {width}")
    if image_size % 4:
        raise StructuredInitError(f"'kw_large' takes images whose side is a multiple of 4, not {image_size}")
    c32, c64, c512 = (max(2, 2 * round(published * width / 2)) for published in (32, 64, 512))  # even, for MaxMin
    return nn.Sequential(
        convolution(in_channels, c32, KERNEL, stride=1), MaxMin(),
        convolution(c32, c32, KERNEL, stride=2), MaxMin(),
        convolution(c32, c64, KERNEL, stride=1), MaxMin(),
        convolution(c64, c64, KERNEL, stride=2), MaxMin(),
        nn.Flatten(),
        linear(c64 * (image_size // 4) ** 2, c512), MaxMin(),
        linear(c512, c512), MaxMin(),
        linear(c512, num_classes),
    )  # fmt: skip

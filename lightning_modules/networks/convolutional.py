"""ConvMixers for small images, by name, built by timm's class.

Source: Trockman and Kolter, "Patches Are All You Need?", 2201.09792.
"""

from __future__ import annotations

import re
from typing import Any

from timm.models.convmixer import ConvMixer

from structured_init.util.arguments import check_whole
from structured_init.util.errors import StructuredInitError

_NAME = re.compile(r"convmixer_(\d+)_(\d+)_k(\d+)_p(\d+)")

# Names to suggest; any other sizes in the pattern work as well.
CONVMIXERS = (
    "convmixer_64_4_k9_p4",    # CIFAR on two cores
    "convmixer_256_8_k5_p2",   # default of locuslab/convmixer-cifar10: 594,186 parameters
    "convmixer_256_8_k9_p2",   # 708,874
    "convmixer_256_8_k9_p1",   # 706,570
    "convmixer_512_6_k3_p2",   # the sizes of the impulse papers (2401.12511, 2404.01139)
    "convmixer_512_6_k5_p2",
)  # fmt: skip


def convmixer_sizes(name: str) -> dict[str, int] | None:
    """Return ``dim``, ``depth``, ``kernel_size`` and ``patch_size`` that a name says, or None for another name."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    return dict(zip(("dim", "depth", "kernel_size", "patch_size"), map(int, found.groups()), strict=True))


def convmixer(
    dim: int,
    depth: int,
    kernel_size: int = 9,
    patch_size: int = 2,
    *,
    image_size: int = 32,
    num_classes: int = 10,
    in_channels: int = 3,
    **timm_args: Any,
) -> ConvMixer:
    """Build a ConvMixer with PyTorch's default initialization.

    Args:
        dim: channels.
        depth: number of blocks.
        kernel_size: side of the depthwise filters; an even one is padded by one more pixel at the right and bottom.
        patch_size: side of the square patch in pixels; it must divide ``image_size``.
        image_size: side of the square image in pixels.
        num_classes: outputs.
        in_channels: channels of the image.
        timm_args: further arguments of timm's ``ConvMixer``: ``drop_rate``, ``act_layer``, ….

    Raises:
        StructuredInitError: a size is below 1, or the patches do not divide the image.
    """
    sizes = {"dim": dim, "depth": depth, "kernel_size": kernel_size, "patch_size": patch_size}
    check_whole("ConvMixer", **sizes)
    if image_size % patch_size:
        raise StructuredInitError(f"patch_size {patch_size} does not divide image_size {image_size}")
    return ConvMixer(**sizes, num_classes=num_classes, in_chans=in_channels, **timm_args)

"""ConvMixers and ConvNeXts for small images, by name, built by timm's classes.

Sources: Trockman and Kolter, "Patches Are All You Need?", 2201.09792; Liu et al., "A ConvNet for the
2020s", 2201.03545.
"""

from __future__ import annotations

import re
from typing import Any

import timm
from timm.models.convmixer import ConvMixer
from timm.models.convnext import ConvNeXt, ConvNeXtBlock
from torch import nn

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
    spatial_activation: bool = True,
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
        spatial_activation: False leaves out the GELU between the depthwise convolution and its batch norm: the linear
            mixer of the impulse papers, in which a frozen filter, its norm and the 1 × 1 convolution are one linear map
            (2404.01139 §3). The paths of the layers stay as they are.
        timm_args: further arguments of timm's ``ConvMixer``: ``drop_rate``, ``act_layer``, ….

    Raises:
        StructuredInitError: a size is below 1, or the patches do not divide the image.
    """
    sizes = {"dim": dim, "depth": depth, "kernel_size": kernel_size, "patch_size": patch_size}
    check_whole("ConvMixer", **sizes)
    if image_size % patch_size:
        raise StructuredInitError(f"patch_size {patch_size} does not divide image_size {image_size}")
    network = ConvMixer(**sizes, num_classes=num_classes, in_chans=in_channels, **timm_args)
    if not spatial_activation:
        for block in network.blocks:
            block[0].fn[1] = nn.Identity()
    return network


#                             timm's name      patch          maps of the four stages at 32 pixels
CONVNEXTS: dict[str, tuple[str, int]] = {
    "convnext_atto_patch1_32": ("convnext_atto", 1),  #       32, 16, 8, 4
    "convnext_atto_patch2_32": ("convnext_atto", 2),  #        8,  4, 2, 1: timm halves once more after a stem of two
    "convnext_tiny_patch1_32": ("convnext_tiny", 1),
    "convnext_tiny_patch2_32": ("convnext_tiny", 2),
}  # fmt: skip


def convnext(
    name: str, *, image_size: int = 32, num_classes: int = 10, in_channels: int = 3, **timm_args: Any
) -> ConvNeXt:
    """Build a preset of :data:`CONVNEXTS`, with further arguments of timm's ``ConvNeXt``, such as ``drop_path_rate``.

    The side of the square image, in pixels, is only checked: the network takes any. Where ``ls_init_value`` is None,
    which ``timm.create_model`` would leave out, there is no layer scale.

    Raises:
        StructuredInitError: the patches do not divide the image, or it is too small for three further halvings.
    """
    timm_name, patch_size = CONVNEXTS[name]
    patch_size = timm_args.pop("patch_size", patch_size)
    if image_size % patch_size:
        raise StructuredInitError(f"patch_size {patch_size} does not divide image_size {image_size}")
    smallest = patch_size * (16 if patch_size == 2 else 8)
    if image_size < smallest:
        raise StructuredInitError(
            f"'{name}' with patch_size {patch_size} halves its maps down to 1 / {smallest} of the image: "
            f"image_size {image_size} is too small"
        )
    network = timm.create_model(
        timm_name, patch_size=patch_size, stem_type="patch", num_classes=num_classes, in_chans=in_channels, **timm_args
    )
    if timm_args.get("ls_init_value", 1) is None:
        for block in network.modules():
            if isinstance(block, ConvNeXtBlock):
                block.gamma = None
    return network

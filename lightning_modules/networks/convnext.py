"""ConvNeXts for small images by name: timm's, with the stem's patch said. At 224 pixels timm's own names serve.

Source: Liu et al., "A ConvNet for the 2020s", arXiv 2201.03545.
"""

from __future__ import annotations

from typing import Any

import timm
from timm.models.convnext import ConvNeXt

from structured_init.errors import StructuredInitError

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
    """Build a preset of :data:`CONVNEXTS`.

    Args:
        name: the preset.
        image_size: side of the square image in pixels; only checked, the network takes any.
        num_classes: outputs.
        in_channels: channels of the image.
        timm_args: further arguments of timm's ``ConvNeXt``: ``kernel_sizes``, ``drop_path_rate``, ….

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
    return timm.create_model(
        timm_name, patch_size=patch_size, stem_type="patch", num_classes=num_classes, in_chans=in_channels, **timm_args
    )

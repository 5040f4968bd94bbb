"""Vision transformers for small images, built of timm's parts under the literature's names."""

from __future__ import annotations

from functools import partial
from typing import Any

from timm.layers import HybridEmbed
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer_hybrid import ConvStem

from structured_init.util.arguments import check_known
from structured_init.util.errors import StructuredInitError

STEMS = ("patchify", "convolutional")

#                                   image  patch  width  layers  heads
PRESETS: dict[str, dict[str, int]] = {
    name: dict(zip(("image_size", "patch_size", "embed_dim", "depth", "num_heads"), row, strict=True))
    for name, row in {
        "vit_nano_patch1_8":        (8,     1,     64,     4,      4),  # digits: one token per pixel
        "vit_nano_patch2_8":        (8,     2,     64,     4,      4),
        "vit_micro_patch4_32":      (32,    4,     96,     6,      3),  # CIFAR on two cores: 210 images/s per thread
        "vit_tiny_patch2_32":       (32,    2,    192,    12,      3),  # the papers' network (2404.01139)
        "vit_tiny_patch4_32":       (32,    4,    192,    12,      3),
        "vit_tiny_patch4_64":       (64,    4,    192,    12,      3),  # Tiny ImageNet, also 256 tokens
        "vit_small_patch2_32":      (32,    2,    384,    12,      6),
        "vit_tiny_patch16_gap_224": (224,  16,    192,    12,      3),  # ImageNet, pooled by mean as the above
    }.items()
}  # fmt: skip


def vision_transformer(
    image_size: int,
    patch_size: int,
    embed_dim: int,
    depth: int,
    num_heads: int,
    *,
    num_classes: int = 10,
    in_channels: int = 3,
    class_token: bool = False,
    register_tokens: int = 0,
    pool: str = "avg",
    stem: str = "patchify",
    **timm_args: Any,
) -> VisionTransformer:
    """Build a vision transformer of the papers on structured initialization: no class token, mean pooling, ``fc_norm``.

    Its weights are timm's default initialization: linear layers truncated normal with σ 0.02 and zero biases; the patch
    embedding, a convolution, as torch draws it.

    Args:
        image_size: side of the square image in pixels.
        patch_size: side of the square patch in pixels; it must divide ``image_size``.
        embed_dim: width; a multiple of ``num_heads``.
        depth: number of layers.
        num_heads: attention heads per layer.
        num_classes: outputs.
        in_channels: channels of the image.
        class_token: prepend a class token. It gets no position of its own unless ``no_embed_class=False`` is given.
        register_tokens: how many further tokens to prepend.
        pool: ``avg``, ``token`` (needs the class token), or another of timm's poolings.
        stem: ``patchify``, one linear map of a patch, or ``convolutional``, 3×3 convolutions of stride 2 to the same
            grid, with batch norm and ReLU between them (Xiao et al., 2106.14881; timm's ``ConvStem``).
        timm_args: further arguments of timm's ``VisionTransformer``: ``mlp_ratio``, ``qk_norm``, ``pos_embed``, …

    Raises:
        StructuredInitError: sizes do not divide, or a choice is not one of those above.
    """
    if image_size % patch_size:  # timm would leave out the border
        raise StructuredInitError(f"patch_size {patch_size} does not divide image_size {image_size}")
    if pool == "token" and not class_token:
        raise StructuredInitError("pool 'token' needs class_token: true")
    check_known("stem", stem, STEMS)
    if stem == "convolutional":
        halvings = patch_size.bit_length() - 1
        if patch_size < 2 or patch_size != 2**halvings:
            raise StructuredInitError(
                f"stem 'convolutional' halves the image: patch_size {patch_size} is no 2, 4, 8, …"
            )
        convolutions = ConvStem(in_channels, halvings, embed_dim, stride=(2,) * halvings)
        timm_args = {"embed_layer": partial(HybridEmbed, backbone=convolutions, proj=False), **timm_args}
        patch_size = 1  # of the stem's pixels
    return VisionTransformer(
        img_size=image_size,
        patch_size=patch_size,
        in_chans=in_channels,
        num_classes=num_classes,
        embed_dim=embed_dim,
        depth=depth,
        num_heads=num_heads,
        class_token=class_token,
        reg_tokens=register_tokens,
        global_pool=pool,
        **{"no_embed_class": True, **timm_args},
    )

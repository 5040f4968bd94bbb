"""Compact transformers for images: a tokenizer and the shared encoder.

Letters: B batch, C channels, H height, W width, N tokens, D embed_dim.
"""

from __future__ import annotations

import os
from typing import Any

from torch import Tensor, nn

from lightning_modules.networks.compact_transformer.layers import CompactEncoder, ConvTokenizer, PatchTokenizer
from lightning_modules.networks.compact_transformer.published import (
    COMPACT_TRANSFORMERS,
    compact_arguments,
    load_weights,
)
from structured_init.errors import StructuredInitError, nearest


class CompactTransformer(nn.Module):
    """ViT-Lite (patches, class token), CVT (patches, sequence pooling) or CCT (convolutions, sequence pooling).

    Args:
        image_size: side of the square image in pixels.
        embed_dim, depth, num_heads, mlp_ratio, num_classes: as in :class:`CompactEncoder`.
        kernel_size: of the convolutions of the tokenizer, or the side of a patch.
        conv_layers: convolutions of the tokenizer; ``None`` for patches.
        stride: of the convolutions; max(1, k // 2 − 1) when None.
        padding: of the convolutions; max(1, k // 2) when None.
        in_channels: C.
        encoder_args: further arguments of :class:`CompactEncoder`: ``class_token``, ``positions``, ``norm_order``,
            ``stochastic_depth``, ``token_softmax``, ``pool_softmax``, ….

    Raises:
        StructuredInitError: sizes that do not divide or leave no token, an unknown choice, rates out of range.
    """

    def __init__(
        self,
        image_size: int,
        embed_dim: int,
        depth: int,
        num_heads: int,
        mlp_ratio: float,
        kernel_size: int,
        conv_layers: int | None = None,
        *,
        stride: int | None = None,
        padding: int | None = None,
        num_classes: int = 10,
        in_channels: int = 3,
        **encoder_args: Any,
    ) -> None:
        super().__init__()
        self.tokenizer: ConvTokenizer | PatchTokenizer
        if conv_layers is not None:
            self.tokenizer = ConvTokenizer(in_channels, embed_dim, kernel_size, conv_layers, stride, padding)
        elif stride is None and padding is None:
            self.tokenizer = PatchTokenizer(in_channels, embed_dim, kernel_size)
        else:
            raise StructuredInitError("patches have no stride or padding of their own: give conv_layers, or leave them")
        side = self.tokenizer.side(image_size)
        self.encoder = CompactEncoder(
            side**2, embed_dim, depth, num_heads, mlp_ratio, num_classes, grid=(side, side), **encoder_args
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, classes) of images (B, C, H, W)."""
        return self.encoder(self.tokenizer(images))


def compact_transformer(
    name: str,
    *,
    image_size: int | None = None,
    num_classes: int | None = None,
    in_channels: int = 3,
    weights: str | os.PathLike[str] | None = None,
    **arguments: Any,
) -> CompactTransformer:
    """Build a compact transformer by its published name.

    Args:
        name: ``vit_lite_7_4_32``, ``cvt_7_4_32``, ``cct_7_3x1_32``, ``cct_14_7x2_224``, …: any of
            :data:`COMPACT_TRANSFORMERS`, or the same with other sizes; see :func:`compact_arguments`.
        image_size: side of the square image in pixels; the name's when None.
        num_classes: outputs; what the name says when None.
        in_channels: channels of the image.
        weights: a file of weights to begin with, of the public code or of ours; see :func:`load_weights`.
        arguments: of :class:`CompactTransformer`; they win over the name's.

    Raises:
        StructuredInitError: an unknown name (the nearest is named), sizes that do not fit, weights of another network.
    """
    said = compact_arguments(name)
    if said is None:
        raise StructuredInitError(f"unknown compact transformer '{name}': {nearest(name, COMPACT_TRANSFORMERS)}")
    sizes = {"image_size": image_size, "num_classes": num_classes, "in_channels": in_channels}
    sizes = {key: size for key, size in sizes.items() if size is not None}
    network = CompactTransformer(**{**said, **sizes, **arguments})
    if weights is not None:
        load_weights(network, weights)
    return network

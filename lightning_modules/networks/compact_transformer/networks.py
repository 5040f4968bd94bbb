"""Compact transformers for images and for texts, whose masks reach the tokenizer, attention and pooling.

The public code has text models that run without a mask and without positions only; these follow its sizes and its
initialization.

Letters: B batch, C channels, H height, W width, T tokens of a text, N tokens, E word_embed_dim, D embed_dim.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_modules.networks.compact_transformer.layers import (
    CompactEncoder,
    ImageTokenizer,
    Positions,
    TextTokenizer,
    conv_stride_and_padding,
)
from structured_init.util.arguments import check_choice
from structured_init.util.errors import StructuredInitError

Tokenizer = Literal["conv", "patch", None]


class CompactTransformer(nn.Module):
    """ViT-Lite (patches, class token), CVT (patches, sequence pooling) or CCT (convolutions, sequence pooling).

    Args:
        image_size: side of the square image in pixels.
        embed_dim, depth, num_heads, mlp_ratio, num_classes: as in :class:`CompactEncoder`.
        kernel_size: of the convolutions of the tokenizer, or the side of a patch.
        conv_layers: convolutions of the tokenizer; ``None`` for patches.
        in_channels: C.
        encoder_args: further arguments of :class:`CompactEncoder`: ``class_token``, ``positions``,
            ``stochastic_depth``, ``token_softmax``, ``pool_softmax``, ….

    Raises:
        StructuredInitError: patches that do not divide the image, an unknown choice.
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
        num_classes: int = 10,
        in_channels: int = 3,
        **encoder_args: Any,
    ) -> None:
        super().__init__()
        if conv_layers is None and image_size % kernel_size:
            raise StructuredInitError(f"patch_size {kernel_size} does not divide image_size {image_size}")
        self.tokenizer = ImageTokenizer(in_channels, embed_dim, kernel_size, conv_layers)
        with torch.no_grad():
            tokens = self.tokenizer(torch.zeros(1, in_channels, image_size, image_size)).shape[1]
        grid = (math.isqrt(tokens), math.isqrt(tokens))
        self.encoder = CompactEncoder(
            tokens, embed_dim, depth, num_heads, mlp_ratio, num_classes, grid=grid, **encoder_args
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, classes) of images (B, C, H, W)."""
        return self.encoder(self.tokenizer(images))


class TextCompactTransformer(nn.Module):
    """Embedding, tokenizer and the shared encoder: CCT, CVT, ViT-Lite, or a plain transformer without a tokenizer.

    Every text is padded to ``seq_len``, so that its logits do not depend on the texts beside it.

    Args:
        vocab_size: rows of the embedding.
        seq_len: T, the longest text.
        tokenizer: ``conv`` (CCT: convolution, ReLU, max pooling), ``patch`` (neighbouring tokens side by side), or
            ``None``.
        kernel_size: tokens that a convolution sees, or that make a patch.
        word_embed_dim: E.
        embed_dim: D; without a tokenizer it is E.
        num_classes, depth, num_heads, mlp_ratio: as in :class:`CompactEncoder`.
        positions: as there, but ``sine`` unless said otherwise, as published.
        encoder_args: further arguments of :class:`CompactEncoder`.

    Raises:
        StructuredInitError: patches that do not divide the text, an unknown choice.
    """

    def __init__(
        self,
        vocab_size: int,
        num_classes: int,
        seq_len: int = 64,
        *,
        tokenizer: Tokenizer = "conv",
        kernel_size: int = 1,
        word_embed_dim: int = 300,
        embed_dim: int = 128,
        depth: int = 2,
        num_heads: int = 2,
        mlp_ratio: float = 1,
        positions: Positions = "sine",
        **encoder_args: Any,
    ) -> None:
        super().__init__()
        check_choice("TextCompactTransformer", tokenizer=(tokenizer, Tokenizer))
        self.seq_len = seq_len
        self.tokenizer: TextTokenizer | None = None
        if tokenizer == "conv":  # CCT's
            stride, padding = conv_stride_and_padding(kernel_size)
            self.tokenizer = TextTokenizer(word_embed_dim, embed_dim, kernel_size, stride, padding, pooled=True)
        if tokenizer == "patch":  # of CVT and ViT-Lite: neighbouring tokens side by side through one linear map
            if seq_len % kernel_size:
                raise StructuredInitError(f"patch_size {kernel_size} does not divide seq_len {seq_len}")
            self.tokenizer = TextTokenizer(word_embed_dim, embed_dim, kernel_size, kernel_size, 0, pooled=False)
        tokens, width = seq_len, word_embed_dim
        if self.tokenizer is not None:
            tokens, width = self.tokenizer.mask(torch.ones(1, seq_len)).shape[1], embed_dim
        self.embedding = nn.Embedding(vocab_size, word_embed_dim)
        self.encoder = CompactEncoder(
            tokens, width, depth, num_heads, mlp_ratio, num_classes, positions=positions, **encoder_args
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return logits (B, classes).

        Args:
            input_ids: (B, T) numbers of tokens, T at most ``seq_len``.
            attention_mask: (B, T), nonzero for the tokens of the text; when None, all of them are.

        Raises:
            StructuredInitError: a longer text than the network was built for.
        """
        missing = self.seq_len - input_ids.shape[1]
        if missing < 0:
            raise StructuredInitError(
                f"a text of {input_ids.shape[1]} tokens is longer than seq_len {self.seq_len}: cut it, or raise seq_len"
            )
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        mask = F.pad(attention_mask.bool(), (0, missing))
        embedded = self.embedding(F.pad(input_ids, (0, missing))) * mask.unsqueeze(-1)
        if self.tokenizer is not None:
            embedded, mask = self.tokenizer(embedded, mask)
        return self.encoder(embedded, mask)

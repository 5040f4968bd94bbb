"""Compact transformers for text, whose masks reach the tokenizer, attention and pooling.

Letters: B batch, T tokens of a text, N tokens of the encoder, E word_embed_dim, D embed_dim.

The public code has text models that run without a mask and without positions only; these follow its sizes and its
initialization.
"""

from __future__ import annotations

import os
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_modules.networks.compact_transformer.layers import (
    POOL_PADDING,
    POOL_STRIDE,
    CompactEncoder,
    initialize_convolutions,
    side_after,
)
from lightning_modules.networks.compact_transformer.published import (
    TEXT_COMPACT_TRANSFORMERS,
    load_weights,
    text_arguments,
)
from structured_init.errors import StructuredInitError, nearest
from structured_init.layers.sequence_pooling import check_mask

POOL = 2  # of text; 3 of images: TextCCT's own default in the public code (src/text/cct.py), which _text_cct keeps


class TextTokenizer(nn.Module):
    """A convolution over whole embeddings, without bias; with pooling, ReLU and max pooling (2, stride 2) after it.

    A token that comes out counts where anything that it saw does; the others are zero. A number out of its range is
    refused.
    """

    def __init__(
        self, word_embed_dim: int, embed_dim: int, kernel_size: int, stride: int, padding: int, pooled: bool
    ) -> None:
        super().__init__()
        if min(kernel_size, stride) < 1 or padding < 0:
            raise StructuredInitError(
                f"a tokenizer has kernel_size and stride of at least 1 and padding of at least 0, not {kernel_size}, "
                f"{stride} and {padding}"
            )
        convolution = nn.Conv2d(1, embed_dim, (kernel_size, word_embed_dim), (stride, 1), (padding, 0), bias=False)
        pooling = [nn.ReLU(), nn.MaxPool2d((POOL, 1), (POOL_STRIDE, 1), (POOL_PADDING, 0))] if pooled else []
        self.conv_layers = nn.Sequential(convolution, *pooling)
        self.kernel_size, self.stride, self.padding, self.pooled = kernel_size, stride, padding, pooled
        initialize_convolutions(self)

    def tokens(self, seq_len: int) -> int:
        """Return N for texts of T tokens; refuse sizes that leave none, and patches that do not divide the text."""
        if not self.pooled and seq_len % self.stride:
            raise StructuredInitError(f"patch_size {self.stride} does not divide seq_len {seq_len}")
        tokens = side_after(seq_len, self.kernel_size, self.stride, self.padding)
        if tokens < 1:
            raise StructuredInitError(
                f"the tokenizer leaves no token of seq_len {seq_len}: kernel_size {self.kernel_size}, stride "
                f"{self.stride} and padding {self.padding}; use longer texts or more padding"
            )
        return side_after(tokens, POOL, POOL_STRIDE, POOL_PADDING) if self.pooled else tokens

    def forward(self, embedded: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens (B, N, D) and their mask of embeddings (B, T, E), zero where the mask (B, T) is 0."""
        tokens = self.conv_layers(embedded.unsqueeze(1)).squeeze(-1).mT
        mask = self.mask(mask)
        return tokens * mask.unsqueeze(-1), mask

    def mask(self, mask: Tensor) -> Tensor:
        """Return which of the tokens that come out saw a token of the text, (B, N) of (B, T)."""
        seen = mask.unsqueeze(1).float()
        ones = torch.ones(1, 1, self.kernel_size, device=mask.device)
        with torch.autocast(mask.device.type, enabled=False):
            seen = F.conv1d(seen, ones, stride=self.stride, padding=self.padding)
        if self.pooled:
            seen = F.max_pool1d(seen, POOL, POOL_STRIDE, POOL_PADDING)
        return seen.squeeze(1) > 0


class TextCompactTransformer(nn.Module):
    """Embedding, tokenizer and the shared encoder: CCT, CVT, ViT-Lite, or a plain transformer without a tokenizer.

    Every text is padded to ``seq_len``, so that its logits do not depend on the texts beside it.

    Args:
        vocab_size: rows of the embedding.
        seq_len: T, the longest text.
        tokenizer: ``conv`` (CCT: convolution, ReLU, max pooling), ``patch`` (neighbouring tokens side by side), or
            ``None``, whose width is that of the embedding.
        kernel_size: tokens that a convolution sees, or that make a patch.
        word_embed_dim: E.
        embed_dim: D; ``None`` without a tokenizer.
        num_classes, depth, num_heads, mlp_ratio: as in :class:`CompactEncoder`.
        positions: as there, but ``sine`` unless said otherwise, as published.
        pad_token_id: whose embedding is zero and stays so; ``None`` where every token is one of a text.
        encoder_args: further arguments of :class:`CompactEncoder`.

    Raises:
        StructuredInitError: sizes that do not divide or leave no token, an unknown choice, rates out of range.
    """

    def __init__(
        self,
        vocab_size: int,
        num_classes: int,
        seq_len: int = 64,
        *,
        tokenizer: Literal["conv", "patch"] | None = "conv",
        kernel_size: int = 1,
        word_embed_dim: int = 300,
        embed_dim: int | None = 128,
        depth: int = 2,
        num_heads: int = 2,
        mlp_ratio: float = 1,
        positions: Literal["learnable", "sine", "none"] = "sine",
        pad_token_id: int | None = None,
        **encoder_args: Any,
    ) -> None:
        super().__init__()
        if pad_token_id is not None and not 0 <= pad_token_id < vocab_size:
            raise StructuredInitError(f"pad_token_id {pad_token_id} is not among the {vocab_size} tokens")
        if tokenizer not in ("conv", "patch", None):
            raise StructuredInitError(f"tokenizer must be conv, patch or null, not '{tokenizer}'")
        if tokenizer is None and embed_dim not in (None, word_embed_dim):
            raise StructuredInitError(
                f"without a tokenizer the width is that of the embedding, {word_embed_dim}: leave embed_dim out"
            )
        if tokenizer is not None and embed_dim is None:
            raise StructuredInitError("a tokenizer needs embed_dim, the width of its tokens")
        width = word_embed_dim if embed_dim is None else embed_dim
        self.seq_len, self.pad_token_id = seq_len, pad_token_id
        self.tokenizer: TextTokenizer | None = None
        if tokenizer == "conv":  # CCT's
            stride, padding = max(1, kernel_size // 2 - 1), max(1, kernel_size // 2)
            self.tokenizer = TextTokenizer(word_embed_dim, width, kernel_size, stride, padding, pooled=True)
        elif tokenizer == "patch":  # of CVT and ViT-Lite: neighbouring tokens side by side through one linear map
            self.tokenizer = TextTokenizer(word_embed_dim, width, kernel_size, kernel_size, 0, pooled=False)
        tokens = seq_len if self.tokenizer is None else self.tokenizer.tokens(seq_len)
        self.embedding = nn.Embedding(vocab_size, word_embed_dim, padding_idx=pad_token_id)
        self.encoder = CompactEncoder(
            tokens, width, depth, num_heads, mlp_ratio, num_classes, positions=positions, **encoder_args
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return logits (B, classes).

        Args:
            input_ids: (B, T) numbers of tokens, T at most ``seq_len``.
            attention_mask: (B, T), nonzero for the tokens of the text; when None, for all but ``pad_token_id``.

        Raises:
            StructuredInitError: a mask of another shape, a longer text than the network was built for.
        """
        missing = self.seq_len - input_ids.shape[1]
        if missing < 0:
            raise StructuredInitError(
                f"a text of {input_ids.shape[1]} tokens is longer than seq_len {self.seq_len}: cut it, or raise seq_len"
            )
        if attention_mask is None:
            attention_mask = input_ids != (-1 if self.pad_token_id is None else self.pad_token_id)
        check_mask(attention_mask, input_ids)
        mask = F.pad(attention_mask.bool(), (0, missing))
        embedded = self.embedding(F.pad(input_ids, (0, missing))) * mask.unsqueeze(-1)
        if self.tokenizer is not None:
            embedded, mask = self.tokenizer(embedded, mask)
        return self.encoder(embedded, mask)


def text_compact_transformer(
    name: str, *, vocab_size: int, num_classes: int, weights: str | os.PathLike[str] | None = None, **arguments: Any
) -> TextCompactTransformer:
    """Build a compact transformer for text by its name, with weights to begin with from a file (:func:`load_weights`).

    The name is any of :data:`TEXT_COMPACT_TRANSFORMERS`, or one with its tokenizer: ``text_cct_4_1x1``,
    ``text_cvt_2_4``. Arguments of :class:`TextCompactTransformer` win over the name's.

    Raises:
        StructuredInitError: an unknown name (the nearest is named), sizes that do not fit, weights of another network.
    """
    said = text_arguments(name)
    if said is None:
        raise StructuredInitError(f"unknown compact transformer '{name}': {nearest(name, TEXT_COMPACT_TRANSFORMERS)}")
    network = TextCompactTransformer(vocab_size, num_classes, **{**said, **arguments})
    if weights is not None:
        load_weights(network, weights)
    return network

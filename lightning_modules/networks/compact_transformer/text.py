"""Compact transformers for text, whose masks reach attention and pooling.

Letters: B batch, T tokens of a text, N tokens of the encoder, E word_embed_dim, D embed_dim.

The public code has text models that run without a mask and without positions only; these follow its sizes and its
initialization.
"""

from __future__ import annotations

import os
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from lightning_modules.networks.compact_transformer.encoder import CompactEncoder
from lightning_modules.networks.compact_transformer.names import TEXT_COMPACT_TRANSFORMERS, text_arguments
from lightning_modules.networks.compact_transformer.text_tokenizer import TextTokenizer, conv_tokens, patch_tokens
from lightning_modules.networks.compact_transformer.weights import load_weights
from structured_init.errors import StructuredInitError, nearest
from structured_init.layers.sequence_pooling import check_mask


class TextCompactTransformer(nn.Module):
    """Embedding, tokenizer and the shared encoder: CCT, CVT, ViT-Lite, or a plain transformer without a tokenizer.

    Every text is padded to ``seq_len``, so that its logits do not depend on the texts beside it.

    Args:
        vocab_size: rows of the embedding.
        num_classes: outputs.
        seq_len: T, the longest text.
        tokenizer: ``conv`` (CCT: convolution, ReLU, max pooling), ``patch`` (neighbouring tokens side by side), or
            ``None``, whose width is that of the embedding.
        kernel_size: tokens that a convolution sees, or that make a patch.
        word_embed_dim: E.
        embed_dim: D; ``None`` without a tokenizer.
        depth: number of blocks.
        num_heads: heads per block.
        mlp_ratio: hidden width of the MLP over D.
        positions: as in :class:`CompactEncoder`, here ``sine`` unless said otherwise, as published.
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
        width = _width(tokenizer, word_embed_dim, embed_dim)
        self.seq_len, self.pad_token_id = seq_len, pad_token_id
        self.tokenizer: TextTokenizer | None = None
        if tokenizer == "conv":
            self.tokenizer = conv_tokens(word_embed_dim, width, kernel_size)
        elif tokenizer == "patch":
            self.tokenizer = patch_tokens(word_embed_dim, width, kernel_size)
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
    name: str,
    *,
    vocab_size: int,
    num_classes: int,
    weights: str | os.PathLike[str] | None = None,
    **arguments: Any,
) -> TextCompactTransformer:
    """Build a compact transformer for text by its name.

    Args:
        name: any of :data:`TEXT_COMPACT_TRANSFORMERS`, or with its tokenizer: ``text_cct_4_1x1``, ``text_cvt_2_4``.
        vocab_size: rows of the embedding.
        num_classes: outputs.
        weights: a file of weights to begin with; see :func:`load_weights`.
        arguments: of :class:`TextCompactTransformer`; they win over the name's.

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


def _width(tokenizer: str | None, word_embed_dim: int, embed_dim: int | None) -> int:
    """Return D."""
    if tokenizer not in ("conv", "patch", None):
        raise StructuredInitError(f"tokenizer must be conv, patch or null, not '{tokenizer}'")
    if tokenizer is None:
        if embed_dim not in (None, word_embed_dim):
            raise StructuredInitError(
                f"without a tokenizer the width is that of the embedding, {word_embed_dim}: leave embed_dim out"
            )
        return word_embed_dim
    if embed_dim is None:
        raise StructuredInitError("a tokenizer needs embed_dim, the width of its tokens")
    return embed_dim

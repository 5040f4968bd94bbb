"""Tokenizers over embeddings: one convolution along the text, and the mask that goes with its result.

Letters: B batch, T tokens of a text, N tokens that come out, E word_embed_dim, D embed_dim.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_modules.networks.compact_transformer.tokenizer import (
    POOL_PADDING,
    POOL_STRIDE,
    initialize_convolutions,
    side_after,
)
from structured_init.errors import StructuredInitError

POOL = 2  # of text; 3 of images: TextCCT's own default in the public code (src/text/cct.py), which _text_cct keeps


class TextTokenizer(nn.Module):
    """A convolution over whole embeddings, without bias; with pooling, ReLU and max pooling (2, stride 2) after it.

    A token that comes out counts where anything that it saw does; the others are zero.

    Args:
        word_embed_dim: E.
        embed_dim: D.
        kernel_size: tokens that the convolution sees.
        stride: of the convolution.
        padding: of the convolution.
        pooled: whether ReLU and pooling follow.

    Raises:
        StructuredInitError: a number is out of its range.
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
        """Return N for texts of T tokens.

        Raises:
            StructuredInitError: none is left, or patches do not divide the text.
        """
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


def conv_tokens(word_embed_dim: int, embed_dim: int, kernel_size: int) -> TextTokenizer:
    """Return CCT's tokenizer: stride max(1, k // 2 − 1), padding max(1, k // 2), ReLU and pooling."""
    stride, padding = max(1, kernel_size // 2 - 1), max(1, kernel_size // 2)
    return TextTokenizer(word_embed_dim, embed_dim, kernel_size, stride, padding, pooled=True)


def patch_tokens(word_embed_dim: int, embed_dim: int, patch_size: int) -> TextTokenizer:
    """Return that of CVT and ViT-Lite: neighbouring tokens side by side through one linear map."""
    return TextTokenizer(word_embed_dim, embed_dim, patch_size, patch_size, 0, pooled=False)

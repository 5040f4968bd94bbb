"""What compact transformers are made of: tokenizers of images and texts, and the encoder that all of them share.

Letters: B batch, C channels, H height, W width, T tokens of a text, E word_embed_dim, N tokens, D embed_dim, P prefix
tokens.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from lightning_modules.networks.token_softmax import place_token_softmax
from structured_init.hosts import TokenLayout, register_positions
from structured_init.layers import SequencePooling, TokenSoftmaxValue
from structured_init.util.arguments import check_choice
from structured_init.util.errors import StructuredInitError

Positions = Literal["learnable", "sine", "none"]
HIDDEN_CHANNELS = 64  # of the convolutions before the last


def conv_stride_and_padding(kernel_size: int) -> tuple[int, int]:
    """Return what the public code gives the convolutions of CCT."""
    return max(1, kernel_size // 2 - 1), max(1, kernel_size // 2)


def initialize_convolutions(module: nn.Module) -> None:
    """Draw the weights of convolutions from N(0, 2 / fan_in), as published; biases keep torch's default."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight)


class ImageTokenizer(nn.Module):
    """Square patches by one convolution with bias (``conv_layers`` None, ``kernel_size`` their side), or CCT's layers.

    Each of these is a convolution without bias, ReLU and max pooling (3, stride 2).
    """

    def __init__(self, in_channels: int, embed_dim: int, kernel_size: int, conv_layers: int | None) -> None:
        super().__init__()
        self.pooled = conv_layers is not None
        self.conv_layers = nn.Sequential()
        if conv_layers is None:
            # Nested and named as in CCT, so that one map of names serves both.
            self.conv_layers.append(nn.Sequential(nn.Conv2d(in_channels, embed_dim, kernel_size, kernel_size)))
        else:
            stride, padding = conv_stride_and_padding(kernel_size)
            for behind in [HIDDEN_CHANNELS] * (conv_layers - 1) + [embed_dim]:
                convolution = nn.Conv2d(in_channels, behind, kernel_size, stride, padding, bias=False)
                self.conv_layers.append(nn.Sequential(convolution, nn.ReLU(), nn.MaxPool2d(3, 2, 1)))
                in_channels = behind
        initialize_convolutions(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return tokens (B, N, D) of images (B, C, H, W), row by row."""
        if self.pooled:  # pooling is faster with channels last in memory, and the tokens need no copy
            images = images.contiguous(memory_format=torch.channels_last)
        return self.conv_layers(images).flatten(2).mT


class TextTokenizer(nn.Module):
    """A convolution over whole embeddings, without bias; with pooling, ReLU and max pooling (2, stride 2) after it.

    A token that comes out counts where anything that it saw does; the others are zero.
    """

    def __init__(
        self, word_embed_dim: int, embed_dim: int, kernel_size: int, stride: int, padding: int, pooled: bool
    ) -> None:
        super().__init__()
        convolution = nn.Conv2d(1, embed_dim, (kernel_size, word_embed_dim), (stride, 1), (padding, 0), bias=False)
        pooling = [nn.ReLU(), nn.MaxPool2d((2, 1), (2, 1), (1, 0))] if pooled else []
        self.conv_layers = nn.Sequential(convolution, *pooling)
        self.kernel_size, self.stride, self.padding, self.pooled = kernel_size, stride, padding, pooled
        initialize_convolutions(self)

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
            seen = F.max_pool1d(seen, 2, 2, 1)
        return seen.squeeze(1) > 0


def sine_positions(tokens: int, embed_dim: int) -> Tensor:
    """Return sin(p/10000^(i/D)) for even i and cos(p/10000^((i−1)/D)) for odd i, (tokens, D).

    p counts tokens row by row, the class token first where there is one: no code of rows and columns.

    Source: ``src/utils/transformers.py``, ``sinusoidal_embedding``, SHI-Labs/Compact-Transformers at cd11f09.
    """
    coordinate = torch.arange(embed_dim)
    even = coordinate.div(2, rounding_mode="floor") * 2
    angles = torch.arange(tokens, dtype=torch.float64)[:, None] / 10000 ** (even / embed_dim).double()
    return torch.where(coordinate % 2 == 0, angles.sin(), angles.cos()).float()


class CompactBlock(Block):
    """timm's block, but with the residual stream itself normalized before the MLP, as published.

    That is x ← x + Attn(LN x), x ← LN x, x ← x + MLP(x).
    """

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """Map tokens (B, N, D); ``attn_mask`` is true where a query may look, broadcast to (B, H, N, N)."""
        x = x + self.drop_path1(self.attn(self.norm1(x), attn_mask=attn_mask))
        x = self.norm2(x)
        return x + self.drop_path2(self.mlp(x))


class CompactEncoder(nn.Module):
    """Positions, blocks, norm, pooling and head, under timm's names.

    Args:
        seq_len: N, tokens without the class token.
        embed_dim: D, a multiple of ``num_heads``.
        depth: number of blocks.
        num_heads: heads per block.
        mlp_ratio: hidden width of the MLP over D.
        num_classes: outputs.
        class_token: a class token in place of sequence pooling.
        positions: ``learnable`` (N(0, 0.2²) cut at ±2), ``sine`` (of the token's number, frozen) or ``none``.
        grid: (rows, columns) of the tokens; ``None`` for a sequence.
        dropout: of tokens, MLP and the output of attention.
        attention_dropout: of the attention map.
        stochastic_depth: rate at which the last block's branches are left out; rises linearly from 0 at the first.
        token_softmax: arguments of :func:`place_token_softmax`; ``None`` for ordinary values.
        pool_softmax: arguments of :class:`TokenSoftmaxValue` for the pooled tokens; ``None`` for the tokens themselves.

    Attributes:
        num_prefix_tokens: P.

    Raises:
        StructuredInitError: unknown positions, or a ``pool_softmax`` where nothing is pooled.
    """

    def __init__(
        self,
        seq_len: int,
        embed_dim: int,
        depth: int,
        num_heads: int,
        mlp_ratio: float,
        num_classes: int,
        *,
        class_token: bool = False,
        positions: Positions = "learnable",
        grid: tuple[int, int] | None = None,
        dropout: float = 0.0,
        attention_dropout: float = 0.1,
        stochastic_depth: float = 0.1,
        token_softmax: dict[str, Any] | None = None,
        pool_softmax: dict[str, Any] | None = None,
    ) -> None:
        check_choice("CompactEncoder", positions=(positions, Positions))
        if class_token and pool_softmax is not None:
            raise StructuredInitError("pool_softmax needs sequence pooling: this network has a class token")
        super().__init__()
        self.grid, self.positions = grid, positions
        self.num_prefix_tokens = int(class_token)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim)) if class_token else None
        tokens = seq_len + self.num_prefix_tokens
        self.pos_embed = None
        if positions == "sine":
            self.pos_embed = nn.Parameter(sine_positions(tokens, embed_dim)[None], requires_grad=False)
        if positions == "learnable":
            self.pos_embed = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, tokens, embed_dim), std=0.2))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList()
        for block in range(depth):
            rates = {"proj_drop": dropout, "attn_drop": attention_dropout}
            drop_path = stochastic_depth * block / max(depth - 1, 1)
            self.blocks.append(
                CompactBlock(embed_dim, num_heads, mlp_ratio, drop_path=drop_path, norm_layer=nn.LayerNorm, **rates)
            )
        self.norm = nn.LayerNorm(embed_dim)
        values = None if pool_softmax is None else TokenSoftmaxValue(**pool_softmax)
        self.pool = None if class_token else SequencePooling(embed_dim, values)
        self.head = nn.Linear(embed_dim, num_classes)
        for part in self.modules():
            if isinstance(part, nn.Linear):
                nn.init.trunc_normal_(part.weight, std=0.02)  # cut at ±2
                if part.bias is not None:
                    nn.init.zeros_(part.bias)
        if token_softmax is not None:
            place_token_softmax(self, **token_softmax)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return logits (B, classes) of tokens (B, N, D).

        ``mask`` (B, N), boolean, is true for the tokens that count: in attention as keys, in the pooling, and in every
        softmax over tokens.
        """
        if self.cls_token is not None:
            tokens = torch.cat([self.cls_token.expand(len(tokens), -1, -1), tokens], dim=1)
            mask = None if mask is None else F.pad(mask, (1, 0), value=True)
        if self.pos_embed is not None:
            tokens = tokens + self.pos_embed
        tokens = self.dropout(tokens)
        attn_mask = None if mask is None else mask[:, None, None]
        for block in self.blocks:
            tokens = block(tokens, attn_mask)
        tokens = self.norm(tokens)
        return self.head(tokens[:, 0] if self.pool is None else self.pool(tokens, mask))


@register_positions(CompactEncoder)
def tokens_of_encoder(encoder: CompactEncoder) -> TokenLayout:
    """``pos_embed`` (1, P + N, D), or none."""
    prefix = encoder.num_prefix_tokens
    return TokenLayout(encoder.grid, prefix, encoder.pos_embed, first=prefix)

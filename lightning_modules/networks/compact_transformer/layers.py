"""What compact transformers are made of: positions, tokenizers of images, and the encoder that all of them share.

Letters: B batch, C channels, H height, W width, N tokens, D embed_dim, P prefix tokens.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import torch
from timm.layers import Attention, DropPath, Mlp, resample_abs_pos_embed
from torch import Tensor, nn

from lightning_modules.networks.token_softmax import place_token_softmax
from structured_init.arguments import check_known, check_share, check_whole
from structured_init.errors import StructuredInitError
from structured_init.hosts import TokenLayout, register_positions
from structured_init.layers import SequencePooling, TokenSoftmaxValue
from structured_init.layers.sequence_pooling import check_mask


def sine_positions(tokens: int, embed_dim: int) -> Tensor:
    """Return sin(p/10000^(i/D)) for even i and cos(p/10000^((i−1)/D)) for odd i, (tokens, D).

    p counts tokens row by row, the class token first where there is one: no code of rows and columns.

    Source: ``src/utils/transformers.py``, ``sinusoidal_embedding``, SHI-Labs/Compact-Transformers at cd11f09.
    """
    coordinate = torch.arange(embed_dim)
    even = coordinate.div(2, rounding_mode="floor") * 2
    angles = torch.arange(tokens, dtype=torch.float64)[:, None] / 10000 ** (even / embed_dim).double()
    return torch.where(coordinate % 2 == 0, angles.sin(), angles.cos()).float()


def interpolated(positions: Tensor, prefix_tokens: int, grid: tuple[int, int]) -> Tensor:
    """Return learned positions (1, P + N, D) of a square grid, no other, for another one, bilinearly as published."""
    old = positions.shape[1] - prefix_tokens
    side = round(old**0.5)
    if side**2 != old:
        raise StructuredInitError(f"{old} positions are not a square grid: they cannot be interpolated to {grid}")
    return resample_abs_pos_embed(
        positions, list(grid), [side, side], prefix_tokens, interpolation="bilinear", antialias=False
    )


POOL, POOL_STRIDE, POOL_PADDING = 3, 2, 1


class ConvTokenizer(nn.Module):
    """CCT's: convolution without bias, ReLU and max pooling (3, stride 2), once per layer.

    Stride and padding are max(1, k // 2 − 1) and max(1, k // 2) when None, as published. Convolutions before the last
    have ``hidden_channels``. A number out of its range is refused.
    """

    def __init__(
        self,
        in_channels: int,
        embed_dim: int,
        kernel_size: int,
        conv_layers: int = 1,
        stride: int | None = None,
        padding: int | None = None,
        hidden_channels: int = 64,
    ) -> None:
        super().__init__()
        stride = max(1, kernel_size // 2 - 1) if stride is None else stride
        padding = max(1, kernel_size // 2) if padding is None else padding
        if min(kernel_size, conv_layers, stride) < 1 or padding < 0:
            raise StructuredInitError(
                f"a tokenizer has kernel_size, conv_layers and stride of at least 1 and padding of at least 0, not "
                f"{kernel_size}, {conv_layers}, {stride} and {padding}"
            )
        channels = [in_channels, *[hidden_channels] * (conv_layers - 1), embed_dim]
        self.conv_layers = nn.Sequential()
        for before, behind in pairwise(channels):
            convolution = nn.Conv2d(before, behind, kernel_size, stride, padding, bias=False)
            pool = nn.MaxPool2d(POOL, POOL_STRIDE, POOL_PADDING)
            self.conv_layers.append(nn.Sequential(convolution, nn.ReLU(), pool))
        initialize_convolutions(self)

    def side(self, image_size: int) -> int:
        """Return the tokens along a side of the image, or an error where none is left."""
        side = image_size
        for convolution, *_ in self.conv_layers:
            sizes = (convolution.kernel_size, convolution.stride, convolution.padding)
            kernel, stride, padding = (size[0] for size in sizes)
            convolved = side_after(side, kernel, stride, padding)
            if convolved < 1:
                raise StructuredInitError(
                    f"the tokenizer leaves no token of image_size {image_size}: kernel_size {kernel}, stride {stride} "
                    f"and padding {padding} meet {side} pixels; use a larger image or padding"
                )
            side = side_after(convolved, POOL, POOL_STRIDE, POOL_PADDING)
        return side

    def forward(self, images: Tensor) -> Tensor:
        """Return tokens (B, N, D) of images (B, C, H, W), row by row.

        The channels stand last in memory: pooling is faster that way, and the tokens need no copy.
        """
        return self.conv_layers(images.contiguous(memory_format=torch.channels_last)).flatten(2).mT


class PatchTokenizer(nn.Module):
    """ViT-Lite's and CVT's: one convolution of square patches, of a pixel or more, with bias, and nothing after it."""

    def __init__(self, in_channels: int, embed_dim: int, patch_size: int) -> None:
        super().__init__()
        check_whole("PatchTokenizer", patch_size=patch_size)
        self.patch_size = patch_size
        # Nested and named as in CCT, so that one map of names serves both.
        self.conv_layers = nn.Sequential(nn.Sequential(nn.Conv2d(in_channels, embed_dim, patch_size, patch_size)))
        initialize_convolutions(self)

    def side(self, image_size: int) -> int:
        """Return the tokens along a side of the image, or an error where the patches do not divide it."""
        if image_size < 1 or image_size % self.patch_size:
            raise StructuredInitError(f"patch_size {self.patch_size} does not divide image_size {image_size}")
        return image_size // self.patch_size

    def forward(self, images: Tensor) -> Tensor:
        """Return tokens (B, N, D) of images (B, C, H, W), row by row."""
        return self.conv_layers(images).flatten(2).mT


def side_after(size: int, kernel_size: int, stride: int, padding: int) -> int:
    """Return the size that a convolution or pooling leaves of ``size``; zero or less where it does not fit."""
    return (size + 2 * padding - kernel_size) // stride + 1


def initialize_convolutions(module: nn.Module) -> None:
    """Draw the weights of convolutions from N(0, 2 / fan_in), as published; biases keep torch's default."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight)


NormOrder = Literal["published", "pre"]
POSITIONS = ("learnable", "sine", "none")
NORM_ORDERS = ("published", "pre")


class CompactBlock(nn.Module):
    """Attention and MLP, with the residual stream itself normalized before the MLP, as published.

    That is x ← x + Attn(LN x), x ← LN x, x ← x + MLP(x). ``norm_order="pre"`` ends in x ← x + MLP(LN x) instead.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        mlp_ratio: float,
        dropout: float,
        attention_dropout: float,
        drop_path: float,
        norm_order: NormOrder,
    ) -> None:
        super().__init__()
        self.norm_order = norm_order
        self.norm1 = nn.LayerNorm(embed_dim)
        self.attn = Attention(embed_dim, num_heads, attn_drop=attention_dropout, proj_drop=dropout)
        self.norm2 = nn.LayerNorm(embed_dim)
        self.mlp = Mlp(embed_dim, int(embed_dim * mlp_ratio), drop=dropout)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """Map tokens (B, N, D); ``attn_mask`` is true where a query may look, broadcast to (B, H, N, N)."""
        x = x + self.drop_path(self.attn(self.norm1(x), attn_mask=attn_mask))
        if self.norm_order == "pre":
            return x + self.drop_path(self.mlp(self.norm2(x)))
        x = self.norm2(x)
        return x + self.drop_path(self.mlp(x))


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
        norm_order: ``published``, in which the residual stream is normalized, or ``pre``; see :class:`CompactBlock`.
        token_softmax: arguments of :func:`place_token_softmax`; ``None`` for ordinary values.
        pool_softmax: arguments of :class:`TokenSoftmaxValue` for the pooled tokens; ``None`` for the tokens themselves.

    Attributes:
        num_prefix_tokens: P.

    Raises:
        StructuredInitError: sizes that do not divide, an unknown choice, rates out of range.
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
        positions: Literal["learnable", "sine", "none"] = "learnable",
        grid: tuple[int, int] | None = None,
        dropout: float = 0.0,
        attention_dropout: float = 0.1,
        stochastic_depth: float = 0.1,
        norm_order: NormOrder = "published",
        token_softmax: dict[str, Any] | None = None,
        pool_softmax: dict[str, Any] | None = None,
    ) -> None:
        if min(embed_dim, depth, num_heads) < 1 or embed_dim % num_heads:
            raise StructuredInitError(
                f"embed_dim {embed_dim} is not a multiple of num_heads {num_heads}, or depth {depth} is below 1"
            )
        check_known("positions", positions, POSITIONS)
        check_known("norm_order", norm_order, NORM_ORDERS)
        if pool_softmax is not None:
            if class_token:
                raise StructuredInitError("pool_softmax needs sequence pooling: this network has a class token")
            for name in {"where", "per_head"} & pool_softmax.keys():
                raise StructuredInitError(f"pool_softmax takes no '{name}': there is one pooling, without heads")
        shares = {"dropout": dropout, "attention_dropout": attention_dropout, "stochastic_depth": stochastic_depth}
        check_share("CompactEncoder", **shares)
        super().__init__()
        self.seq_len, self.grid, self.positions = seq_len, grid, positions
        self.num_prefix_tokens = int(class_token)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim)) if class_token else None
        self.pos_embed = _positions(positions, seq_len + self.num_prefix_tokens, embed_dim)
        self.dropout = nn.Dropout(dropout)
        rates = [stochastic_depth * block / max(depth - 1, 1) for block in range(depth)]
        sizes = (embed_dim, num_heads, mlp_ratio, dropout, attention_dropout)
        self.blocks = nn.ModuleList(CompactBlock(*sizes, rate, norm_order) for rate in rates)
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

        ``mask`` (B, N) is true for the tokens that count: in attention as keys, in the pooling, and in every softmax
        over tokens.

        Raises:
            StructuredInitError: another number of tokens than the positions are for, a mask that is not (B, N).
        """
        if self.pos_embed is not None and tokens.shape[1] != self.seq_len:
            raise StructuredInitError(
                f"the network was built for {self.seq_len} tokens and got {tokens.shape[1]}: build it for this size"
            )
        if mask is not None:
            check_mask(mask, tokens)
            mask = mask.bool()
        if self.cls_token is not None:
            tokens = torch.cat([self.cls_token.expand(len(tokens), -1, -1), tokens], dim=1)
            mask = None if mask is None else torch.cat([mask.new_ones(len(mask), 1), mask], dim=1)
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


def _positions(kind: str, tokens: int, embed_dim: int) -> nn.Parameter | None:
    """Return positions (1, tokens, D)."""
    if kind == "none":
        return None
    if kind == "sine":
        return nn.Parameter(sine_positions(tokens, embed_dim)[None], requires_grad=False)
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(1, tokens, embed_dim), std=0.2))

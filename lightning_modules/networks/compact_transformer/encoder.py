"""The transformer that all compact transformers share: from tokens to logits.

Letters: B batch, N tokens, P 1 with a class token and else 0, D embed_dim.

Source: arXiv 2104.05704 §3; ``src/utils/transformers.py`` of SHI-Labs/Compact-Transformers at cd11f09.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from timm.layers import Attention, DropPath, Mlp
from torch import Tensor, nn

from lightning_modules.networks.compact_transformer.positions import sine_positions
from lightning_modules.networks.token_softmax.place import check_arguments, place_token_softmax
from structured_init.errors import StructuredInitError, nearest
from structured_init.layers import SequencePooling, TokenSoftmaxValue
from structured_init.layers.sequence_pooling import check_mask
from structured_init.sites import TokenLayout, register_positions

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
        _check(embed_dim, depth, num_heads, positions, norm_order, class_token, pool_softmax)
        _check_rates(dropout=dropout, attention_dropout=attention_dropout, stochastic_depth=stochastic_depth)
        super().__init__()
        self.seq_len, self.grid, self.positions = seq_len, grid, positions
        self.num_prefix_tokens = int(class_token)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim)) if class_token else None
        self.pos_embed = _positions(positions, seq_len + self.num_prefix_tokens, embed_dim)
        self.dropout = nn.Dropout(dropout)
        rates = [stochastic_depth * block / max(depth - 1, 1) for block in range(depth)]
        self.blocks = nn.ModuleList(
            CompactBlock(embed_dim, num_heads, mlp_ratio, dropout, attention_dropout, rate, norm_order)
            for rate in rates
        )
        self.norm = nn.LayerNorm(embed_dim)
        values = None if pool_softmax is None else TokenSoftmaxValue(**pool_softmax)
        self.pool = None if class_token else SequencePooling(embed_dim, values)
        self.head = nn.Linear(embed_dim, num_classes)
        self.apply(_start_linear)
        if token_softmax is not None:
            place_token_softmax(self, **token_softmax)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return logits (B, classes) of tokens (B, N, D).

        Args:
            tokens: (B, N, D).
            mask: (B, N), true for the tokens that count: in attention as keys, in the pooling, and in every softmax
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


def _start_linear(module: nn.Module) -> None:
    """Draw linear layers from N(0, 0.02²) cut at ±2, and set their biases to zero."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _check(
    embed_dim: int,
    depth: int,
    num_heads: int,
    positions: str,
    norm_order: str,
    class_token: bool,
    pool_softmax: dict[str, Any] | None,
) -> None:
    if min(embed_dim, depth, num_heads) < 1 or embed_dim % num_heads:
        raise StructuredInitError(
            f"embed_dim {embed_dim} is not a multiple of num_heads {num_heads}, or depth {depth} is below 1"
        )
    for name, value, choices in (("positions", positions, POSITIONS), ("norm_order", norm_order, NORM_ORDERS)):
        if value not in choices:
            raise StructuredInitError(f"unknown {name} '{value}': {nearest(str(value), choices)}")
    if pool_softmax is None:
        return
    if class_token:
        raise StructuredInitError("pool_softmax needs sequence pooling: this network has a class token")
    for name in pool_softmax:
        if name in ("where", "per_head"):
            raise StructuredInitError(f"pool_softmax takes no '{name}': there is one pooling, without heads")
    check_arguments(pool_softmax)


def _check_rates(**rates: float) -> None:
    for name, rate in rates.items():
        if not 0 <= rate < 1:
            raise StructuredInitError(f"{name} must be in [0, 1), not {rate}")

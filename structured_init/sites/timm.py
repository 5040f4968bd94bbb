"""timm: ``Attention`` with its fused ``qkv``, and the vision transformers around it."""

from __future__ import annotations

from typing import Any

from structured_init.sites.attention import register_attention
from structured_init.sites.layout import AttentionLayout, Projection, TokenLayout
from structured_init.sites.position import register_positions


@register_attention("timm.layers.attention.Attention")
def attention(module: Any) -> AttentionLayout:
    """``qkv.weight`` (3·H·k, D) holds query, key and value in this order, each with its heads in a row."""
    heads, head_dim = module.num_heads, module.head_dim
    query, key, value = (Projection(module.qkv.weight, heads, head_dim, start=i * heads * head_dim) for i in range(3))
    return AttentionLayout(
        query=query,
        key=key,
        value=value,
        output=Projection(module.proj.weight, heads, head_dim, axis=1),
        scale=module.scale,
        query_key_norm=type(module.q_norm).__name__ != "Identity",
    )


@register_positions("timm.models.vision_transformer.VisionTransformer")
def vision_transformer(module: Any) -> TokenLayout:
    """``pos_embed`` (1, prefix + N, D), or (1, N, D) with ``no_embed_class``, or ``None``."""
    prefix = module.num_prefix_tokens
    return TokenLayout(
        grid=tuple(module.patch_embed.grid_size),
        prefix_tokens=prefix,
        positions=module.pos_embed,
        first=0 if module.no_embed_class else prefix,
    )

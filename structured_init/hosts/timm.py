"""timm: attention and MLPs of its vision transformers, and the tokens of the models around them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from structured_init.hosts.known import register_attention
from structured_init.hosts.layout import AttentionLayout, Projection, TokenLayout
from structured_init.hosts.positions import register_positions


@register_attention("timm.layers.attention.Attention")
@register_attention("timm.models.beit.Attention")
def fused(module: Any) -> AttentionLayout:
    """``qkv.weight`` (3·H·k, D) holds query, key and value in this order, each with its heads in a row."""
    heads = module.num_heads
    head_dim = module.qkv.out_features // (3 * heads)
    query, key, value = (Projection(module.qkv.weight, heads, head_dim, start=i * heads * head_dim) for i in range(3))
    return _layout(module, query, key, value)


@register_attention("timm.layers.attention.AttentionRope")
@register_attention("timm.models.eva.EvaAttention")
def rotary(module: Any) -> AttentionLayout:
    """EVA and DINOv3: fused, or apart in ``q_proj``, ``k_proj`` and ``v_proj``, which may group queries."""
    if module.qkv is not None:
        return replace(fused(module), rope=True)
    return replace(_apart(module, module.q_proj, module.k_proj, module.v_proj), rope=True)


@register_attention("timm.models.swin_transformer.WindowAttention")
@register_attention("timm.models.davit.WindowAttention")
def window(module: Any) -> AttentionLayout:
    """Swin and DaViT: the tokens are those of one window."""
    return replace(fused(module), tokens=TokenLayout(grid=tuple(module.window_size)))


@register_attention("timm.models.swin_transformer_v2.WindowAttention")
def cosine_window(module: Any) -> AttentionLayout:
    """Swin v2: cosines of queries and keys, times a learned scale per head that is cut at 100; here its mean."""
    scale = lambda: module.logit_scale.detach().clamp(max=math.log(100)).exp().mean()  # noqa: E731
    return replace(window(module), scale=scale, query_key_norm=True)


@register_positions("timm.models.vision_transformer.VisionTransformer")
def vision_transformer(module: Any) -> TokenLayout:
    """``pos_embed`` (1, prefix + N, D), or (1, N, D) with ``no_embed_class``, or ``None``."""
    prefix = module.num_prefix_tokens
    return TokenLayout(_grid(module), prefix, module.pos_embed, first=0 if module.no_embed_class else prefix)


@register_positions("timm.models.eva.Eva")
def eva(module: Any) -> TokenLayout:
    """The same, with RoPE (EVA-02, DINOv3) or without (EVA)."""
    return replace(vision_transformer(module), rope=module.rope is not None)


@register_positions("timm.models.pit.PoolingVisionTransformer")
def pooled(module: Any) -> TokenLayout:
    """``pos_embed`` (1, D, rows, columns), before class and distillation token; for the first stage."""
    rows, columns = module.pos_embed.shape[2:]
    return TokenLayout((rows, columns), module.num_tokens, module.pos_embed, features=1)


# The other models' tokens.
TOKENS: dict[str, Callable[[Any], TokenLayout | None]] = {
    # No parameter where relative positions are learned instead.
    "beit.Beit": lambda model: TokenLayout(
        _grid(model), model.num_prefix_tokens, model.pos_embed, first=model.num_prefix_tokens
    ),
    # A later stage has fewer tokens, on a grid that the stage itself does not know.
    "pit.Transformer": lambda stage: None if stage.pool is None else TokenLayout(None, prefix_tokens=1),
    # Positions enter as a bias of the logits, and none is added to the tokens.
    "vision_transformer_relpos.VisionTransformerRelPos": lambda model: TokenLayout(
        _grid(model), model.num_prefix_tokens
    ),
    "swin_transformer.SwinTransformer": lambda model: TokenLayout(_grid(model)),
    "swin_transformer_v2.SwinTransformerV2": lambda model: TokenLayout(_grid(model)),
}
for _path, _describe in TOKENS.items():
    register_positions(f"timm.models.{_path}")(_describe)


def _grid(module: Any) -> tuple[int, int]:
    rows, columns = module.patch_embed.grid_size
    return rows, columns


def _apart(module: Any, query: Any, key: Any, value: Any) -> AttentionLayout:
    """Three linear layers; the keys may have fewer heads than the queries."""
    heads = module.num_heads
    head_dim = query.out_features // heads
    groups = key.out_features // head_dim
    layers = ((query, heads), (key, groups), (value, groups))
    return _layout(module, *(Projection(layer.weight, number, head_dim) for layer, number in layers))


def _layout(module: Any, query: Projection, key: Projection, value: Projection) -> AttentionLayout:
    """Add what the classes share: ``proj``, ``scale`` and the norms that some of them have."""
    output = Projection(module.proj.weight, query.heads, query.head_dim, axis=1)
    norms = {"query_key_norm": _normalizes(module, "q_norm"), "value_norm": _normalizes(module, "norm")}
    return AttentionLayout(query, key, value, output, scale=getattr(module, "scale", None), **norms)


def _normalizes(module: Any, name: str) -> bool:
    return type(getattr(module, name, None)).__name__ not in ("NoneType", "Identity")

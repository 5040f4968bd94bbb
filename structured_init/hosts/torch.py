"""torch and torchvision: ``nn.MultiheadAttention``, and with it ``nn.TransformerEncoder`` and its relatives."""

from __future__ import annotations

from typing import Any

from structured_init.hosts.known import register_attention
from structured_init.hosts.layout import AttentionLayout, Projection


@register_attention("torch.nn.modules.activation.MultiheadAttention")
def multihead_attention(module: Any) -> AttentionLayout:
    """``in_proj_weight`` (3·D, D), or three parameters where keys or values come with a width of their own.

    Such a width means other tokens, hence cross-attention.
    """
    heads, head_dim = module.num_heads, module.head_dim
    if module.in_proj_weight is not None:
        fused = module.in_proj_weight
        query, key, value = (Projection(fused, heads, head_dim, start=i * heads * head_dim) for i in range(3))
    else:
        apart = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        query, key, value = (Projection(weight, heads, head_dim) for weight in apart)
    output = Projection(module.out_proj.weight, heads, head_dim, axis=1)
    return AttentionLayout(query, key, value, output, cross=module.in_proj_weight is None)

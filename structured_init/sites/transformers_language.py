"""transformers 5: language models whose attention has positions of other kinds than those of BERT, GPT-2 and Llama."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from structured_init.layout import AttentionLayout, Projection, TokenLayout
from structured_init.sites.attention import register_attention
from structured_init.sites.transformers import MODELS, separate


@register_attention(f"{MODELS}.opt.modeling_opt.OPTAttention")
def opt(module: Any) -> AttentionLayout:
    """``q_proj``, …, ``out_proj``."""
    return separate(module)


@register_attention(f"{MODELS}.gpt_neo.modeling_gpt_neo.GPTNeoSelfAttention")
def gpt_neo(module: Any) -> AttentionLayout:
    """The same, and the product of queries and keys is not scaled."""
    return _linear(module, ("q_proj", "k_proj", "v_proj", "out_proj"), module.head_dim, 1.0)


@register_attention(f"{MODELS}.phi.modeling_phi.PhiAttention")
def phi(module: Any) -> AttentionLayout:
    """The same with ``dense``; a part of every head is turned."""
    layout = _linear(module, ("q_proj", "k_proj", "v_proj", "dense"), module.head_dim, module.scaling)
    return replace(layout, rope=True, query_key_norm=module.qk_layernorm)


@register_attention(f"{MODELS}.t5.modeling_t5.T5Attention")
def t5(module: Any) -> AttentionLayout:
    """``q``, ``k``, ``v``, ``o``, heads of any width, not scaled; positions are a table of biases."""
    return _linear(module, ("q", "k", "v", "o"), module.key_value_proj_dim, 1.0)


@register_attention(f"{MODELS}.bloom.modeling_bloom.BloomAttention")
def bloom(module: Any) -> AttentionLayout:
    """``query_key_value`` (3·H·k, D) holds query, key and value of one head after another; ALiBi."""
    heads, head_dim, weight = module.num_heads, module.head_dim, module.query_key_value.weight
    query, key, value = (Projection(weight, heads, head_dim, start=i * head_dim, step=3 * head_dim) for i in range(3))
    output = Projection(module.dense.weight, heads, head_dim, axis=1)
    return AttentionLayout(query, key, value, output, scale=module.inv_norm_factor)


@register_attention(f"{MODELS}.mpt.modeling_mpt.MptAttention")
def mpt(module: Any) -> AttentionLayout:
    """``Wqkv`` (3·H·k, D) holds query, key and value one after another; ALiBi."""
    heads, head_dim, weight = module.n_heads, module.head_dim, module.Wqkv.weight
    query, key, value = (Projection(weight, heads, head_dim, start=i * heads * head_dim) for i in range(3))
    output = Projection(module.out_proj.weight, heads, head_dim, axis=1)
    return AttentionLayout(query, key, value, output, scale=module.softmax_scale)


@register_attention(f"{MODELS}.beit.modeling_beit.BeitAttention")
def beit(module: Any) -> AttentionLayout:
    """``q_proj``, …, ``o_proj``; positions are a table of biases beside it."""
    return separate(module)


@register_attention(f"{MODELS}.swin.modeling_swin.SwinAttention")
def swin(module: Any) -> AttentionLayout:
    """The same between the tokens of one window."""
    return replace(separate(module), tokens=TokenLayout(grid=tuple(module.relative_position_bias.window_size)))


def _linear(module: Any, names: tuple[str, str, str, str], head_dim: int, scale: float) -> AttentionLayout:
    """Four ``nn.Linear`` by their names."""
    query, key, value, output = (getattr(module, name) for name in names)
    heads, groups = query.out_features // head_dim, key.out_features // head_dim
    return AttentionLayout(
        query=Projection(query.weight, heads, head_dim),
        key=Projection(key.weight, groups, head_dim),
        value=Projection(value.weight, groups, head_dim),
        output=Projection(output.weight, heads, head_dim, axis=1),
        scale=scale,
    )

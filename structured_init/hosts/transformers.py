"""transformers 5: attention, tokens and MLPs of its vision, language and speech models.

Written out per model there, they differ in names only: queries, keys and values are three linear layers, or one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

from torch import nn

from structured_init.hosts.known import register_attention
from structured_init.hosts.layout import AttentionLayout, Projection, TokenLayout
from structured_init.hosts.positions import register_positions
from structured_init.inputs import pair

MODELS = "transformers.models"


@register_attention(f"{MODELS}.vit.modeling_vit.ViTAttention")
@register_attention(f"{MODELS}.clip.modeling_clip.CLIPAttention")
@register_attention(f"{MODELS}.siglip.modeling_siglip.SiglipAttention")
@register_attention(f"{MODELS}.whisper.modeling_whisper.WhisperAttention")
def separate(module: Any) -> AttentionLayout:
    """``q_proj``, ``k_proj``, ``v_proj`` and ``o_proj`` or ``out_proj``; keys and values may have fewer heads."""
    output = "o_proj" if hasattr(module, "o_proj") else "out_proj"
    scale = module.scaling if hasattr(module, "scaling") else module.scale
    layout = _linear(module, ("q_proj", "k_proj", "v_proj", output), module.head_dim, scale)
    return replace(layout, query_key_norm=hasattr(module, "q_norm"))


@register_attention(f"{MODELS}.llama.modeling_llama.LlamaAttention")
@register_attention(f"{MODELS}.mistral.modeling_mistral.MistralAttention")
@register_attention(f"{MODELS}.qwen2.modeling_qwen2.Qwen2Attention")
@register_attention(f"{MODELS}.qwen3.modeling_qwen3.Qwen3Attention")
def rotary(module: Any) -> AttentionLayout:
    """The same, with RoPE between projection and product."""
    return replace(separate(module), rope=True)


@register_attention(f"{MODELS}.swin.modeling_swin.SwinAttention")
def swin(module: Any) -> AttentionLayout:
    """The same between the tokens of one window."""
    return replace(separate(module), tokens=TokenLayout(grid=tuple(module.relative_position_bias.window_size)))


@register_attention(f"{MODELS}.bert.modeling_bert.BertAttention")
@register_attention(f"{MODELS}.roberta.modeling_roberta.RobertaAttention")
def bert(module: Any) -> AttentionLayout:
    """The output projection lies outside of what computes attention: ``self.query``, …, and ``output.dense``."""
    names, inner = ("self.query", "self.key", "self.value", "output.dense"), module.self
    layout = _linear(module, names, inner.attention_head_size, inner.scaling)
    return replace(layout, cross=module.is_cross_attention)


@register_attention(f"{MODELS}.gpt2.modeling_gpt2.GPT2Attention")
def gpt2(module: Any) -> AttentionLayout:
    """``Conv1D`` stores (in, out): ``c_attn.weight`` (D, 3·D) holds query, key and value side by side.

    Cross-attention keeps its query apart, in ``q_attn``.
    """
    heads, head_dim, fused = module.num_heads, module.head_dim, module.c_attn.weight
    blocks = [(fused, 0), (fused, 1), (fused, 2)]
    if module.is_cross_attention:
        blocks = [(module.q_attn.weight, 0), (fused, 0), (fused, 1)]
    sides = [Projection(weight, heads, head_dim, axis=1, start=at * heads * head_dim) for weight, at in blocks]
    output = Projection(module.c_proj.weight, heads, head_dim, axis=0)
    how = {"residual_depth": 2 * module.config.n_layer, "cross": module.is_cross_attention}
    return AttentionLayout(*sides, output, scale=module.scaling, **how)


def _linear(module: nn.Module, names: tuple[str, str, str, str], head_dim: int, scale: float) -> AttentionLayout:
    """Four ``nn.Linear`` by their names, whose sizes say how many heads there are."""
    query, key, value, output = (module.get_submodule(name) for name in names)
    heads, groups = query.out_features // head_dim, key.out_features // head_dim
    return AttentionLayout(
        query=Projection(query.weight, heads, head_dim),
        key=Projection(key.weight, groups, head_dim),
        value=Projection(value.weight, groups, head_dim),
        output=Projection(output.weight, heads, head_dim, axis=1),
        scale=scale,
    )


# Tokens: tables of the common models, which are known where a model cannot be run; a pass shows those of others.

TABLES = {
    "bert.modeling_bert.BertModel": "embeddings.position_embeddings",
    "roberta.modeling_roberta.RobertaModel": "embeddings.position_embeddings",
    "gpt2.modeling_gpt2.GPT2Model": "wpe",
    "vit.modeling_vit.ViTModel": "embeddings.position_embeddings",
    "dinov2.modeling_dinov2.Dinov2Model": "embeddings.position_embeddings",
    "dinov2_with_registers.modeling_dinov2_with_registers.Dinov2WithRegistersModel": "embeddings.position_embeddings",
    "clip.modeling_clip.CLIPTextModel": "embeddings.position_embedding",
    "clip.modeling_clip.CLIPVisionModel": "embeddings.position_embedding",
    "siglip.modeling_siglip.SiglipVisionModel": "embeddings.position_embedding",
    "whisper.modeling_whisper.WhisperEncoder": "embed_positions",
    "whisper.modeling_whisper.WhisperDecoder": "embed_positions",
}


def _added(model: Any, place: str) -> TokenLayout:
    """A table for texts, of which rows up to that of padding are no token's; or for patches, behind class tokens."""
    held = attrgetter(place)(model)
    table, config = getattr(held, "weight", held), model.config
    if not hasattr(config, "patch_size"):
        padding = getattr(held, "padding_idx", None)
        return TokenLayout(None, positions=table, first=0 if padding is None else padding + 1)
    grid = _patches(config)
    before = table.numel() // table.shape[-1] - math.prod(grid)
    return TokenLayout(grid, before + getattr(config, "num_register_tokens", 0), table, first=before)


for _path, _place in TABLES.items():
    register_positions(f"{MODELS}.{_path}")(partial(_added, place=_place))


@register_positions(f"{MODELS}.dinov3_vit.modeling_dinov3_vit.DINOv3ViTModel")
@register_positions(f"{MODELS}.dinov3_vit.modeling_dinov3_vit.DINOv3ViTBackbone")
def dinov3(model: Any) -> TokenLayout:
    """RoPE, and nothing added."""
    return TokenLayout(_patches(model.config), 1 + model.config.num_register_tokens)


def _patches(config: Any) -> tuple[int, int]:
    (height, width), (rows, columns) = pair(config.image_size), pair(config.patch_size)
    return height // rows, width // columns

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

from structured_init.hosts.known_attention import register_attention
from structured_init.hosts.layout import AttentionLayout, Projection, TokenLayout
from structured_init.hosts.positions import register_positions
from structured_init.inputs import pair

MODELS = "transformers.models"


@register_attention(f"{MODELS}.vit.modeling_vit.ViTAttention")
@register_attention(f"{MODELS}.deit.modeling_deit.DeiTAttention")
@register_attention(f"{MODELS}.beit.modeling_beit.BeitAttention")
@register_attention(f"{MODELS}.clip.modeling_clip.CLIPAttention")
@register_attention(f"{MODELS}.siglip.modeling_siglip.SiglipAttention")
@register_attention(f"{MODELS}.whisper.modeling_whisper.WhisperAttention")
@register_attention(f"{MODELS}.wav2vec2.modeling_wav2vec2.Wav2Vec2Attention")
@register_attention(f"{MODELS}.bart.modeling_bart.BartAttention")
@register_attention(f"{MODELS}.opt.modeling_opt.OPTAttention")
def separate(module: Any) -> AttentionLayout:
    """``q_proj``, ``k_proj``, ``v_proj`` and ``o_proj`` or ``out_proj``; keys and values may have fewer heads."""
    output = "o_proj" if hasattr(module, "o_proj") else "out_proj"
    scale = module.scaling if hasattr(module, "scaling") else module.scale
    layout = _linear(module, ("q_proj", "k_proj", "v_proj", output), module.head_dim, scale)
    return replace(layout, query_key_norm=hasattr(module, "q_norm"))


@register_attention(f"{MODELS}.dinov3_vit.modeling_dinov3_vit.DINOv3ViTAttention")
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


@register_attention(f"{MODELS}.dinov2.modeling_dinov2.Dinov2Attention")
@register_attention(f"{MODELS}.dinov2_with_registers.modeling_dinov2_with_registers.Dinov2WithRegistersAttention")
def dinov2(module: Any) -> AttentionLayout:
    """The same; until transformers 5.17 at least, ``attention.query``, …, and ``output.dense`` as in BERT."""
    return separate(module) if hasattr(module, "q_proj") else _named_as_in_bert(module, "attention")


@register_attention(f"{MODELS}.bert.modeling_bert.BertAttention")
@register_attention(f"{MODELS}.roberta.modeling_roberta.RobertaAttention")
def bert(module: Any) -> AttentionLayout:
    """The output projection lies outside of what computes attention: ``self.query``, …, and ``output.dense``."""
    return replace(_named_as_in_bert(module, "self"), cross=module.is_cross_attention)


@register_attention(f"{MODELS}.distilbert.modeling_distilbert.DistilBertSelfAttention")
def distilbert(module: Any) -> AttentionLayout:
    """``q_lin``, ``k_lin``, ``v_lin`` and ``out_lin``."""
    return _linear(module, ("q_lin", "k_lin", "v_lin", "out_lin"), module.attention_head_size, module.scaling)


@register_attention(f"{MODELS}.gpt_neo.modeling_gpt_neo.GPTNeoSelfAttention")
def gpt_neo(module: Any) -> AttentionLayout:
    """``q_proj``, …, ``out_proj``, and the product of queries and keys is not scaled."""
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


@register_attention(f"{MODELS}.gpt_neox.modeling_gpt_neox.GPTNeoXAttention")
def gpt_neox(module: Any) -> AttentionLayout:
    """GPT-NeoX and Pythia: ``query_key_value`` (3·H·k, D) holds query, key and value of one head after another."""
    heads = module.dense.in_features // module.head_size
    return replace(_interleaved(module, heads, module.head_size, module.scaling), rope=True)


@register_attention(f"{MODELS}.bloom.modeling_bloom.BloomAttention")
def bloom(module: Any) -> AttentionLayout:
    """The same, with ALiBi."""
    return _interleaved(module, module.num_heads, module.head_dim, module.inv_norm_factor)


@register_attention(f"{MODELS}.mpt.modeling_mpt.MptAttention")
def mpt(module: Any) -> AttentionLayout:
    """``Wqkv`` (3·H·k, D) holds query, key and value one after another; ALiBi."""
    heads, head_dim, weight = module.n_heads, module.head_dim, module.Wqkv.weight
    query, key, value = (Projection(weight, heads, head_dim, start=i * heads * head_dim) for i in range(3))
    output = Projection(module.out_proj.weight, heads, head_dim, axis=1)
    return AttentionLayout(query, key, value, output, scale=module.softmax_scale)


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


def _named_as_in_bert(module: Any, inner: str) -> AttentionLayout:
    names = (f"{inner}.query", f"{inner}.key", f"{inner}.value", "output.dense")
    return _linear(module, names, getattr(module, inner).attention_head_size, getattr(module, inner).scaling)


def _interleaved(module: Any, heads: int, head_dim: int, scale: float) -> AttentionLayout:
    weight, step = module.query_key_value.weight, 3 * head_dim
    query, key, value = (Projection(weight, heads, head_dim, start=i * head_dim, step=step) for i in range(3))
    output = Projection(module.dense.weight, heads, head_dim, axis=1)
    return AttentionLayout(query, key, value, output, scale=scale)


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

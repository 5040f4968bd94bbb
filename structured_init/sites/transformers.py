"""transformers 5: the attention classes of its vision, language and speech models.

Written out per model there, they differ in names only: queries, keys and values are three linear layers, or one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from structured_init.layout import AttentionLayout, Projection
from structured_init.sites.attention import register_attention

MODELS = "transformers.models"


@register_attention(f"{MODELS}.vit.modeling_vit.ViTAttention")
@register_attention(f"{MODELS}.deit.modeling_deit.DeiTAttention")
@register_attention(f"{MODELS}.clip.modeling_clip.CLIPAttention")
@register_attention(f"{MODELS}.siglip.modeling_siglip.SiglipAttention")
@register_attention(f"{MODELS}.whisper.modeling_whisper.WhisperAttention")
@register_attention(f"{MODELS}.wav2vec2.modeling_wav2vec2.Wav2Vec2Attention")
@register_attention(f"{MODELS}.bart.modeling_bart.BartAttention")
def separate(module: Any) -> AttentionLayout:
    """``q_proj``, ``k_proj``, ``v_proj`` and ``o_proj`` or ``out_proj``; keys and values may have fewer heads."""
    output = module.o_proj if hasattr(module, "o_proj") else module.out_proj
    scale = module.scaling if hasattr(module, "scaling") else module.scale
    layout = _separate(module.q_proj, module.k_proj, module.v_proj, output, module.head_dim, scale)
    return replace(layout, query_key_norm=hasattr(module, "q_norm"))


@register_attention(f"{MODELS}.dinov2.modeling_dinov2.Dinov2Attention")
@register_attention(f"{MODELS}.dinov2_with_registers.modeling_dinov2_with_registers.Dinov2WithRegistersAttention")
def dinov2(module: Any) -> AttentionLayout:
    """The same; until transformers 5.17 at least, ``attention.query``, …, and ``output.dense`` as in BERT."""
    if hasattr(module, "q_proj"):
        return separate(module)
    inner = module.attention
    output = module.output.dense
    return _separate(inner.query, inner.key, inner.value, output, inner.attention_head_size, inner.scaling)


@register_attention(f"{MODELS}.dinov3_vit.modeling_dinov3_vit.DINOv3ViTAttention")
@register_attention(f"{MODELS}.llama.modeling_llama.LlamaAttention")
@register_attention(f"{MODELS}.mistral.modeling_mistral.MistralAttention")
@register_attention(f"{MODELS}.qwen2.modeling_qwen2.Qwen2Attention")
@register_attention(f"{MODELS}.qwen3.modeling_qwen3.Qwen3Attention")
def rotary(module: Any) -> AttentionLayout:
    """The same, with RoPE between projection and product."""
    return replace(separate(module), rope=True)


@register_attention(f"{MODELS}.gpt_neox.modeling_gpt_neox.GPTNeoXAttention")
def interleaved(module: Any) -> AttentionLayout:
    """GPT-NeoX and Pythia: ``query_key_value`` (3·H·k, D) holds query, key and value of one head after another."""
    head_dim = module.head_size
    weight, heads = module.query_key_value.weight, module.dense.in_features // head_dim
    query, key, value = (Projection(weight, heads, head_dim, start=i * head_dim, step=3 * head_dim) for i in range(3))
    output = Projection(module.dense.weight, heads, head_dim, axis=1)
    return AttentionLayout(query, key, value, output, scale=module.scaling, rope=True)


@register_attention(f"{MODELS}.bert.modeling_bert.BertAttention")
@register_attention(f"{MODELS}.roberta.modeling_roberta.RobertaAttention")
def bert(module: Any) -> AttentionLayout:
    """The output projection lies outside of what computes attention: ``self.query``, …, and ``output.dense``."""
    inner = module.self
    layout = _separate(
        inner.query, inner.key, inner.value, module.output.dense, inner.attention_head_size, inner.scaling
    )
    return replace(layout, cross=module.is_cross_attention)


@register_attention(f"{MODELS}.distilbert.modeling_distilbert.DistilBertSelfAttention")
def distilbert(module: Any) -> AttentionLayout:
    """``q_lin``, ``k_lin``, ``v_lin`` and ``out_lin``."""
    parts = (module.q_lin, module.k_lin, module.v_lin, module.out_lin)
    return _separate(*parts, module.attention_head_size, module.scaling)


@register_attention(f"{MODELS}.gpt2.modeling_gpt2.GPT2Attention")
def gpt2(module: Any) -> AttentionLayout:
    """``Conv1D`` stores (in, out): ``c_attn.weight`` (D, 3·D) holds query, key and value side by side.

    Cross-attention keeps its query apart, in ``q_attn``.
    """
    heads, head_dim = module.num_heads, module.head_dim

    def column(weight: Any, block: int) -> Projection:
        return Projection(weight, heads, head_dim, axis=1, start=block * heads * head_dim)

    fused = module.c_attn.weight
    if module.is_cross_attention:
        query, key, value = column(module.q_attn.weight, 0), column(fused, 0), column(fused, 1)
    else:
        query, key, value = (column(fused, block) for block in range(3))
    return AttentionLayout(
        query=query,
        key=key,
        value=value,
        output=Projection(module.c_proj.weight, heads, head_dim, axis=0),
        residual_depth=2 * module.config.n_layer,
        scale=module.scaling,
        cross=module.is_cross_attention,
    )


def _separate(query: Any, key: Any, value: Any, output: Any, head_dim: int, scale: float) -> AttentionLayout:
    """Four ``nn.Linear``, whose sizes say how many heads there are."""
    heads = query.out_features // head_dim
    groups = key.out_features // head_dim
    return AttentionLayout(
        query=Projection(query.weight, heads, head_dim),
        key=Projection(key.weight, groups, head_dim),
        value=Projection(value.weight, groups, head_dim),
        output=Projection(output.weight, heads, head_dim, axis=1),
        scale=scale,
    )

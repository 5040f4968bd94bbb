"""transformers 5: the tokens of its models, patches or text, and the positions added to them."""

from __future__ import annotations

from typing import Any

from structured_init.layout import TokenLayout
from structured_init.sites.position import register_positions
from structured_init.sites.position_rule import pair

MODELS = "transformers.models"


@register_positions(f"{MODELS}.vit.modeling_vit.ViTModel")
@register_positions(f"{MODELS}.dinov2.modeling_dinov2.Dinov2Model")
@register_positions(f"{MODELS}.dinov2.modeling_dinov2.Dinov2Backbone")
def class_token(module: Any) -> TokenLayout:
    """``position_embeddings`` (1, 1 + N, D)."""
    return TokenLayout(_grid(module.config), 1, module.embeddings.position_embeddings, first=1)


@register_positions(f"{MODELS}.deit.modeling_deit.DeiTModel")
def class_and_distillation_token(module: Any) -> TokenLayout:
    """``position_embeddings`` (1, 2 + N, D)."""
    return TokenLayout(_grid(module.config), 2, module.embeddings.position_embeddings, first=2)


@register_positions(f"{MODELS}.dinov2_with_registers.modeling_dinov2_with_registers.Dinov2WithRegistersModel")
@register_positions(f"{MODELS}.dinov2_with_registers.modeling_dinov2_with_registers.Dinov2WithRegistersBackbone")
def class_and_register_tokens(module: Any) -> TokenLayout:
    """``position_embeddings`` (1, 1 + N, D): the registers stand behind the class token and have no position."""
    prefix = 1 + module.config.num_register_tokens
    return TokenLayout(_grid(module.config), prefix, module.embeddings.position_embeddings, first=1)


@register_positions(f"{MODELS}.dinov3_vit.modeling_dinov3_vit.DINOv3ViTModel")
@register_positions(f"{MODELS}.dinov3_vit.modeling_dinov3_vit.DINOv3ViTBackbone")
def rotary_patches(module: Any) -> TokenLayout:
    """RoPE, and nothing added."""
    return TokenLayout(_grid(module.config), 1 + module.config.num_register_tokens)


@register_positions(f"{MODELS}.clip.modeling_clip.CLIPVisionModel")
def clip_vision(module: Any) -> TokenLayout:
    """``position_embedding.weight`` (1 + N, D)."""
    return TokenLayout(_grid(module.config), 1, module.embeddings.position_embedding.weight, first=1)


@register_positions(f"{MODELS}.siglip.modeling_siglip.SiglipVisionModel")
def siglip_vision(module: Any) -> TokenLayout:
    """``position_embedding.weight`` (N, D): no class token."""
    return TokenLayout(_grid(module.config), positions=module.embeddings.position_embedding.weight)


@register_positions(f"{MODELS}.clip.modeling_clip.CLIPTextModel")
@register_positions(f"{MODELS}.siglip.modeling_siglip.SiglipTextModel")
def clip_text(module: Any) -> TokenLayout:
    """``position_embedding.weight`` (length, D)."""
    return TokenLayout(None, positions=module.embeddings.position_embedding.weight)


@register_positions(f"{MODELS}.bert.modeling_bert.BertModel")
@register_positions(f"{MODELS}.distilbert.modeling_distilbert.DistilBertModel")
def bert(module: Any) -> TokenLayout:
    """``position_embeddings.weight`` (length, D)."""
    return TokenLayout(None, positions=module.embeddings.position_embeddings.weight)


@register_positions(f"{MODELS}.roberta.modeling_roberta.RobertaModel")
def roberta(module: Any) -> TokenLayout:
    """``position_embeddings.weight``: the first token has the row behind the padding index."""
    table = module.embeddings.position_embeddings
    return TokenLayout(None, positions=table.weight, first=table.padding_idx + 1)


@register_positions(f"{MODELS}.gpt2.modeling_gpt2.GPT2Model")
def gpt2(module: Any) -> TokenLayout:
    """``wpe.weight`` (length, D)."""
    return TokenLayout(None, positions=module.wpe.weight)


@register_positions(f"{MODELS}.whisper.modeling_whisper.WhisperEncoder")
@register_positions(f"{MODELS}.whisper.modeling_whisper.WhisperDecoder")
@register_positions(f"{MODELS}.bart.modeling_bart.BartEncoder")
@register_positions(f"{MODELS}.bart.modeling_bart.BartDecoder")
def encoder_decoder(module: Any) -> TokenLayout:
    """``embed_positions.weight`` (length, D); BART's table begins two rows late."""
    table = module.embed_positions
    return TokenLayout(None, positions=table.weight, first=getattr(table, "offset", 0))


def _grid(config: Any) -> tuple[int, int]:
    """Return (rows, columns) from image and patch size, each one number or a pair."""
    height, width = pair(config.image_size)
    patch_height, patch_width = pair(config.patch_size)
    return height // patch_height, width // patch_width

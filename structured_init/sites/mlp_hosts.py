"""The MLP classes of timm, transformers, torch and torchvision: where each keeps its first layer."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from structured_init.sites.mlp import FirstLayer, MlpLayout, register_mlp

TIMM = "timm.layers.mlp"
HF = "transformers.models"

PLAIN = {  # class → the submodule that is the first layer
    f"{TIMM}.Mlp": "fc1",
    f"{TIMM}.GatedMlp": "fc1",
    f"{TIMM}.ConvMlp": "fc1",
    f"{TIMM}.GlobalResponseNormMlp": "fc1",
    f"{HF}.vit.modeling_vit.ViTMLP": "fc1",
    f"{HF}.deit.modeling_deit.DeiTMLP": "fc1",
    f"{HF}.dinov2.modeling_dinov2.Dinov2MLP": "fc1",
    f"{HF}.dinov2_with_registers.modeling_dinov2_with_registers.Dinov2WithRegistersMLP": "fc1",
    f"{HF}.dinov3_vit.modeling_dinov3_vit.DINOv3ViTMLP": "up_proj",
    f"{HF}.clip.modeling_clip.CLIPMLP": "fc1",
    f"{HF}.siglip.modeling_siglip.SiglipMLP": "fc1",
    f"{HF}.whisper.modeling_whisper.WhisperEncoderLayer": "fc1",
    f"{HF}.whisper.modeling_whisper.WhisperDecoderLayer": "fc1",
    f"{HF}.bart.modeling_bart.BartEncoderLayer": "fc1",
    f"{HF}.bart.modeling_bart.BartDecoderLayer": "fc1",
    f"{HF}.wav2vec2.modeling_wav2vec2.Wav2Vec2FeedForward": "intermediate_dense",
    f"{HF}.bert.modeling_bert.BertIntermediate": "dense",
    f"{HF}.roberta.modeling_roberta.RobertaIntermediate": "dense",
    f"{HF}.distilbert.modeling_distilbert.FFN": "lin1",
    f"{HF}.gpt_neox.modeling_gpt_neox.GPTNeoXMLP": "dense_h_to_4h",
    f"{HF}.gpt2.modeling_gpt2.GPT2MLP": "c_fc",
    "torch.nn.modules.transformer.TransformerEncoderLayer": "linear1",
    "torch.nn.modules.transformer.TransformerDecoderLayer": "linear1",
    "torchvision.models.vision_transformer.MLPBlock": "0",
}
GATED = {  # class → the submodules of values and gate
    f"{TIMM}.SwiGLU": ("fc1_x", "fc1_g"),
    f"{HF}.llama.modeling_llama.LlamaMLP": ("up_proj", "gate_proj"),
    f"{HF}.mistral.modeling_mistral.MistralMLP": ("up_proj", "gate_proj"),
    f"{HF}.qwen2.modeling_qwen2.Qwen2MLP": ("up_proj", "gate_proj"),
    f"{HF}.qwen3.modeling_qwen3.Qwen3MLP": ("up_proj", "gate_proj"),
    f"{HF}.dinov3_vit.modeling_dinov3_vit.DINOv3ViTGatedMLP": ("up_proj", "gate_proj"),
}
SWIGLU = (  # one fused layer until transformers 5.17 at least, two later
    f"{HF}.dinov2.modeling_dinov2.Dinov2SwiGLUFFN",
    f"{HF}.dinov2_with_registers.modeling_dinov2_with_registers.Dinov2WithRegistersSwiGLUFFN",
)


def plain(module: nn.Module, *, name: str) -> MlpLayout:
    """One layer; transformers' ``Conv1D`` stores (in, out)."""
    return MlpLayout(_layer(module, name))


def gated(module: nn.Module, *, names: tuple[str, str]) -> MlpLayout:
    """Two layers, values and gate."""
    return MlpLayout(*(_layer(module, name) for name in names))


@register_mlp(f"{TIMM}.GluMlp")
def packed(module: Any) -> MlpLayout:
    """``GluMlp``, as ``SwiGLUPacked`` too: one layer of 2·F, whose halves are values and gate, or the reverse."""
    first, second = _halves(module.fc1.weight)
    return MlpLayout(first, second) if module.gate_last else MlpLayout(second, first)


def dinov2_swiglu(module: Any) -> MlpLayout:
    """Of the fused layer, the first half is the gate."""
    if hasattr(module, "weights_in"):
        gate, values = _halves(module.weights_in.weight)
        return MlpLayout(values, gate)
    return gated(module, names=("up_proj", "gate_proj"))


def _halves(weight: nn.Parameter) -> tuple[FirstLayer, FirstLayer]:
    half = weight.shape[0] // 2
    return FirstLayer(weight, size=half), FirstLayer(weight, start=half, size=half)


def _layer(module: nn.Module, name: str) -> FirstLayer:
    layer = module.get_submodule(name)
    return FirstLayer(layer.weight, axis=1 if type(layer).__name__ == "Conv1D" else 0)


for _path, _name in PLAIN.items():
    register_mlp(_path)(partial(plain, name=_name))
for _path, _names in GATED.items():
    register_mlp(_path)(partial(gated, names=_names))
for _path in SWIGLU:
    register_mlp(_path)(dinov2_swiglu)

# ruff: noqa: D103  (what a function returns, its library says)
"""Healthy models of many libraries, which ``benchmarks.mutants`` checks as they are.

Libraries that this project does not need are installed without their dependencies into a folder aside, and found by
``PYTHONPATH``; one that is not there is left out, and said::

    pip install --no-deps --target build/libraries vit-pytorch diffusers monai torch-geometric torchaudio litgpt
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.conformance_models import Build, transformers_with_heads, x_transformers_models
from benchmarks.mutant_models import mutant_models, numbers, words

IMAGE, SMALL_IMAGE = numbers(2, 3, 64, 64), numbers(2, 3, 32, 32)
Parts = tuple[Any, dict[str, Any], object]  # a class, its arguments, and a batch; no batch where it runs on a GPU alone
TRANSFORMERS = (  # but for encoders whose class with a causal head has no causal mask, unless it is asked for
    "albert bart biogpt blenderbot codegen cohere convnextv2 deberta-v2 deit dinov2 distilbert falcon "
    "gemma2 gpt_bigcode gpt_neo gptj granite layoutlm mistral mobilevit mpt olmo olmo2 opt "
    "persimmon phi phi3 pvt qwen2 qwen3 resnet stablelm starcoder2 swin vit vit_msn xglm xlnet"
)


def built(made: Parts) -> tuple[nn.Module, object]:
    """Call a class with its arguments."""
    return made[0](**made[1]), made[2]


def of_timm() -> dict[str, Parts]:
    import timm

    return {
        name: (timm.create_model, {"model_name": name}, numbers(2, 3, 160, 160)) for name in timm.list_models("test_*")
    }


def of_torchvision() -> dict[str, Parts]:
    from torchvision import models

    names = (
        "mobilenet_v3_small",
        "shufflenet_v2_x0_5",
        "squeezenet1_1",
        "mnasnet0_5",
        "efficientnet_b0",
        "regnet_y_400mf",
    )
    return {name: (getattr(models, name), {"num_classes": 10}, IMAGE) for name in names}


def of_diffusers() -> dict[str, Parts]:
    import diffusers

    blocks = {"block_out_channels": (16, 32), "norm_num_groups": 4, "layers_per_block": 1}
    down = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    crossed = {
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
        "cross_attention_dim": 16,
        "attention_head_dim": 8,
    }
    coder = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    sized = {"num_attention_heads": 4, "attention_head_dim": 8, "num_layers": 2, "sample_size": 8, "patch_size": 2}
    step, text, latent = torch.tensor([3, 5]), numbers(2, 6, 16), numbers(2, 4, 8, 8)
    label = torch.tensor([0, 1])
    joint = {"joint_attention_dim": 16, "caption_projection_dim": 32, "pooled_projection_dim": 16, "out_channels": 4}
    return {
        "UNet2D": (diffusers.UNet2DModel, {**blocks, **down, "attention_head_dim": 8}, (SMALL_IMAGE, step)),
        "UNet2DCondition": (diffusers.UNet2DConditionModel, {**blocks, **crossed}, (latent, step, text)),
        "AutoencoderKL": (diffusers.AutoencoderKL, {**blocks, **coder}, SMALL_IMAGE),
        "VQModel": (diffusers.VQModel, {**blocks, **coder}, SMALL_IMAGE),
        "AutoencoderTiny": (diffusers.AutoencoderTiny, {"encoder_block_out_channels": (8,) * 4,
                            "decoder_block_out_channels": (8,) * 4}, SMALL_IMAGE),
        "DiT": (diffusers.DiTTransformer2DModel, {**sized, "in_channels": 4},
                {"hidden_states": latent, "timestep": step, "class_labels": label}),
        "SD3": (diffusers.SD3Transformer2DModel, {**sized, **joint, "in_channels": 4}, {"hidden_states": latent,
                "encoder_hidden_states": text, "pooled_projections": numbers(2, 16), "timestep": step}),
        "Transformer2D": (diffusers.Transformer2DModel, {**sized, "in_channels": 4, "norm_num_groups": 2,
                          "patch_size": None, "cross_attention_dim": 16}, (latent, text)),
        "ControlNet": (diffusers.ControlNetModel, {**blocks, **{key: crossed[key] for key in
                       ("down_block_types", "cross_attention_dim", "attention_head_dim")}},
                       (latent, step, text, numbers(2, 3, 64, 64))),
    }  # fmt: skip


def of_vit_pytorch() -> dict[str, Parts]:
    sized = {"image_size": 64, "patch_size": 16, "num_classes": 5, "dim": 32, "depth": 3, "heads": 4, "mlp_dim": 64}
    mobile = {"image_size": (64, 64), "dims": [16, 20, 24], "channels": [8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 32]}
    found = {
        ("vit", "ViT"): sized,
        ("simple_vit", "SimpleViT"): sized,
        ("deepvit", "DeepViT"): sized,
        ("cait", "CaiT"): {**sized, "cls_depth": 1},
        ("vit_for_small_dataset", "ViT"): sized,
        ("parallel_vit", "ViT"): {**sized, "num_parallel_branches": 2},
        ("simple_vit_with_qk_norm", "SimpleViT"): sized,
        ("simple_vit_with_register_tokens", "SimpleViT"): sized,
        ("simple_vit_with_patch_dropout", "SimpleViT"): sized,
        ("vit_with_patch_merger", "ViT"): {**sized, "patch_merge_layer": 1, "patch_merge_num_tokens": 4},
        ("xcit", "XCiT"): {**sized, "cls_depth": 1},
        ("pit", "PiT"): {**sized, "depth": (1, 2)},
        ("max_vit", "MaxViT"): {"dim": 16, "num_classes": 5, "depth": (1, 1), "dim_head": 8, "window_size": 4,
                                "dim_conv_stem": 16},
        ("nest", "NesT"): {"image_size": 64, "patch_size": 4, "dim": 16, "heads": 2, "num_hierarchies": 2,
                           "block_repeats": (2, 2), "num_classes": 5},
        ("mobile_vit", "MobileViT"): {**mobile, "num_classes": 5},
        ("rvt", "RvT"): sized,
    }  # fmt: skip
    classes = {key: getattr(importlib.import_module(f"vit_pytorch.{key[0]}"), key[1]) for key in found}
    return {f"{file} {name}": (classes[file, name], given, IMAGE) for (file, name), given in found.items()}


def of_monai() -> dict[str, Parts]:
    from monai.networks import nets

    image = numbers(2, 1, 32, 32)
    plain = {"spatial_dims": 2, "in_channels": 1, "out_channels": 2}
    steps = {"channels": (8, 16, 32), "strides": (2, 2)}
    coder = {**plain, **steps, "num_res_units": 1}
    return {
        "UNet": (nets.UNet, coder, image),
        "AttentionUnet": (nets.AttentionUnet, {**plain, **steps}, image),
        "BasicUNet": (nets.BasicUNet, {**plain, "features": (8, 8, 16, 16, 32, 8)}, image),
        "SegResNet": (nets.SegResNet, {**plain, "init_filters": 8}, image),
        "HighResNet": (nets.HighResNet, plain, image),
        "AutoEncoder": (nets.AutoEncoder, {**plain, "channels": (8, 16), "strides": (2, 2)}, image),
        "UNETR": (nets.UNETR, {**plain, "img_size": 32, "feature_size": 4, "hidden_size": 32, "mlp_dim": 64,
                  "num_heads": 4}, image),
        "SwinUNETR": (nets.SwinUNETR, {**plain, "feature_size": 12, "depths": (1, 1, 1, 1)},
                      numbers(2, 1, 64, 64)),
        "ViT": (nets.ViT, {"in_channels": 1, "img_size": 32, "patch_size": 8, "hidden_size": 32, "mlp_dim": 64,
                "num_layers": 3, "num_heads": 4, "spatial_dims": 2, "classification": True}, image),
        "DenseNet": (nets.DenseNet, {**plain, "init_features": 8, "growth_rate": 4, "block_config": (2, 2)}, image),
        "ResNet": (nets.ResNet, {"block": "basic", "layers": [1, 1, 1, 1], "block_inplanes": [8, 8, 16, 16],
                   "spatial_dims": 2, "n_input_channels": 1, "num_classes": 5}, image),
        "DynUNet": (nets.DynUNet, {**plain, "kernel_size": [3, 3, 3], "strides": [1, 2, 2],
                    "upsample_kernel_size": [2, 2], "filters": [8, 16, 32]}, image),
        "Classifier": (nets.Classifier, {"in_shape": (1, 32, 32), "classes": 5, "channels": (8, 16), "strides": (2, 2)},
                       image),
        "FullyConnectedNet": (nets.FullyConnectedNet, {"in_channels": 32, "out_channels": 5,
                              "hidden_channels": (32, 32)}, numbers(4, 32)),
    }  # fmt: skip


def of_torch_geometric() -> dict[str, Parts]:
    from torch_geometric.nn import models

    edges = torch.stack([torch.arange(12), torch.arange(1, 13) % 12])
    graph = (numbers(12, 16), torch.cat([edges, edges.flip(0)], dim=1))
    sized = {"in_channels": 16, "hidden_channels": 32, "num_layers": 3, "out_channels": 5}
    found = {name: (getattr(models, name), sized, graph) for name in ("GCN", "GraphSAGE", "GIN", "GAT", "EdgeCNN")}
    found["GATv2"] = (models.GAT, {**sized, "v2": True, "heads": 1}, graph)
    found["JumpingKnowledge"] = (models.GCN, {**sized, "jk": "cat"}, graph)
    found["MLP"] = (models.MLP, {**sized, "norm": "layer_norm"}, graph[0])
    return found


def of_torchaudio() -> dict[str, Parts]:
    from torchaudio import models

    lengths = torch.tensor([20, 20])
    sound, frames = numbers(2, 1, 4000), numbers(2, 20, 16)
    conformer = {"input_dim": 16, "num_heads": 4, "ffn_dim": 32, "num_layers": 3, "depthwise_conv_kernel_size": 3}
    return {
        "ConvTasNet": (models.ConvTasNet, {"enc_num_feats": 16, "msk_num_feats": 8, "msk_num_hidden_feats": 16,
                       "msk_num_layers": 2, "msk_num_stacks": 2}, sound),
        "DeepSpeech": (models.DeepSpeech, {"n_feature": 16, "n_hidden": 32, "n_class": 10}, numbers(2, 1, 20, 16)),
        "Conformer": (models.Conformer, conformer, (frames, lengths)),
        "Emformer": (models.Emformer, {"input_dim": 16, "num_heads": 4, "ffn_dim": 32, "num_layers": 3,
                     "segment_length": 4}, (frames, lengths)),
    }  # fmt: skip


def of_litgpt() -> dict[str, Parts]:
    from litgpt import GPT, Config

    small = {"n_layer": 3, "n_embd": 32, "n_head": 4, "padded_vocab_size": 64, "block_size": 16, "head_size": None,
             "n_query_groups": None, "intermediate_size": 64}  # fmt: skip

    def build(name: str) -> nn.Module:
        return GPT(Config.from_name(name, **small))

    names = (
        "pythia-14m",
        "Llama-3.2-1B",
        "Mistral-7B-v0.1",
        "phi-2",
        "Gemma-2b",
        "Qwen2.5-0.5B",
        "stablelm-base-alpha-3b",
    )
    return {name: (build, {"name": name}, words()) for name in names}


def of_fla() -> dict[str, Parts]:
    from fla import models

    small = {"hidden_size": 32, "num_hidden_layers": 3, "num_heads": 4, "vocab_size": 64}
    kinds = ("GLA", "RetNet", "DeltaNet", "GatedDeltaNet", "HGRN", "LinearAttention", "GSA")

    def build(kind: str) -> nn.Module:
        return getattr(models, f"{kind}ForCausalLM")(getattr(models, f"{kind}Config")(**small))

    return {kind: (build, {"kind": kind}, None) for kind in kinds}


def of_speechbrain() -> dict[str, Parts]:
    from speechbrain.lobes.models import ECAPA_TDNN, Xvector
    from speechbrain.nnet import linear, normalization
    from speechbrain.nnet.RNN import GRU, LSTM, LiGRU

    sound = numbers(2, 40, 16)
    return {
        "ECAPA_TDNN": (ECAPA_TDNN.ECAPA_TDNN, {"input_size": 16, "channels": [16] * 4 + [48], "attention_channels": 8,
                       "lin_neurons": 16, "res2net_scale": 4, "se_channels": 8}, sound),
        "Xvector": (Xvector.Xvector, {"in_channels": 16, "tdnn_blocks": 3, "tdnn_channels": [16] * 3,
                    "tdnn_kernel_sizes": [5, 3, 1], "tdnn_dilations": [1, 2, 1], "lin_neurons": 16}, sound),
        "LSTM": (LSTM, {"hidden_size": 16, "input_size": 16}, sound),
        "GRU": (GRU, {"hidden_size": 16, "input_size": 16}, sound),
        "LiGRU": (LiGRU, {"hidden_size": 16, "input_shape": (2, 40, 16)}, sound),
        "Linear": (linear.Linear, {"n_neurons": 8, "input_size": 16}, sound),
        "LayerNorm": (normalization.LayerNorm, {"input_size": 16}, sound),
    }  # fmt: skip


def of_segmentation_models_pytorch() -> dict[str, Parts]:
    import segmentation_models_pytorch as models

    given = {"encoder_name": "mobilenet_v2", "encoder_weights": None, "classes": 2}
    return {name: (getattr(models, name), given, IMAGE) for name in ("Unet", "FPN", "Linknet", "PSPNet")}


def of_open_clip() -> dict[str, Parts]:
    from open_clip.model import CLIP

    vision = {"layers": 3, "width": 32, "head_width": 8, "patch_size": 8, "image_size": 32}
    text = {"context_length": 16, "vocab_size": 64, "width": 32, "heads": 4, "layers": 3}
    given = {"embed_dim": 32, "vision_cfg": vision, "text_cfg": text}
    scaled = {**given, "vision_cfg": {**vision, "ls_init_value": 1e-4}}
    return {
        "CLIP": (CLIP, given, (SMALL_IMAGE, words())),
        "CLIP with layer scale": (CLIP, scaled, (SMALL_IMAGE, words())),
    }


def of_denoising_diffusion_pytorch() -> dict[str, Parts]:
    from denoising_diffusion_pytorch import Unet, Unet1D

    step = torch.tensor([3, 5])
    return {
        "Unet": (Unet, {"dim": 16, "dim_mults": (1, 2), "flash_attn": False}, (SMALL_IMAGE, step)),
        "Unet1D": (Unet1D, {"dim": 16, "dim_mults": (1, 2), "channels": 3}, (numbers(2, 3, 32), step)),
    }


def of_mambapy() -> dict[str, Parts]:
    from mambapy import mamba

    config = mamba.MambaConfig(d_model=32, n_layers=3)
    return {"Mamba": (mamba.Mamba, {"config": config}, numbers(2, 16, 32))}


def of_rtdl_revisiting_models() -> dict[str, Parts]:
    import rtdl_revisiting_models as rtdl

    rows = numbers(4, 8)
    residual = {"d_in": 8, "d_out": 3, "n_blocks": 3, "d_block": 32, "d_hidden": 32, "d_hidden_multiplier": None}
    return {
        "MLP": (rtdl.MLP, {"d_in": 8, "d_out": 3, "n_blocks": 3, "d_block": 32, "dropout": 0.1}, rows),
        "ResNet": (rtdl.ResNet, {**residual, "dropout1": 0.1, "dropout2": 0.0}, rows),
        "FTTransformer": (rtdl.FTTransformer, {"n_cont_features": 8, "cat_cardinalities": [], "d_out": 3,
                          **{**rtdl.FTTransformer.get_default_kwargs(), "_is_default": False}}, (rows, None)),
    }  # fmt: skip


def of_small_libraries() -> dict[str, Parts]:
    """Return a model or two of libraries that hold a single architecture: ``module class``."""
    sized = {"dim": 32, "depth": 3, "heads": 4}
    language = {"num_tokens": 64, "max_seq_len": 16}
    image = {"image_size": 32, "patch_size": 8, "dim": 32, "depth": 3, "num_classes": 5}
    perceiver = {"depth": 2, "input_channels": 3, "input_axis": 2, "num_latents": 8, "latent_dim": 32, "num_classes": 5,
                 "num_freq_bands": 4, "max_freq": 10.0, "latent_dim_head": 8, "cross_dim_head": 8}  # fmt: skip
    pixels = SMALL_IMAGE.permute(0, 2, 3, 1)
    table: list[tuple[str, str, dict[str, Any], Tensor]] = [
        ("conformer", "Conformer", {"dim": 32, "depth": 3, "dim_head": 8, "heads": 4}, numbers(2, 16, 32)),
        ("perceiver_pytorch", "Perceiver", perceiver, pixels),
        ("nystrom_attention", "Nystromformer", {**sized, "dim_head": 8, "num_landmarks": 4}, numbers(2, 16, 32)),
        ("reformer_pytorch", "ReformerLM", {**sized, **language, "bucket_size": 4, "causal": True}, words()),
        ("performer_pytorch", "PerformerLM", {**sized, **language, "dim_head": 8}, words()),
        ("local_attention", "LocalTransformer", {**sized, **language, "local_attn_window_size": 8, "dim_head": 8},
         words()),
        ("mlp_mixer_pytorch", "MLPMixer", {**image, "channels": 3}, SMALL_IMAGE),
        ("g_mlp_pytorch", "gMLPVision", image, SMALL_IMAGE),
        ("g_mlp_pytorch", "gMLP", {"num_tokens": 64, "dim": 32, "depth": 3, "seq_len": 16}, words()),
        ("pytorch_tabnet.tab_network", "TabNet", {"input_dim": 8, "output_dim": 3,
         "group_attention_matrix": torch.eye(8)}, numbers(16, 8)),
    ]  # fmt: skip
    found = {}
    for module, name, given, batch in table:
        try:
            found[f"{module} {name}"] = (getattr(importlib.import_module(module), name), given, batch)
        except ImportError as error:
            print(f"{module} left out: {error}", flush=True)
    return found


LIBRARIES: dict[str, Callable[[], dict[str, Parts]]] = {  # by the name under which they are installed
    "timm": of_timm,
    "torchvision": of_torchvision,
    "vit-pytorch": of_vit_pytorch,
    "monai": of_monai,
    "torch-geometric": of_torch_geometric,
    "diffusers": of_diffusers,
    "litgpt": of_litgpt,
    "torchaudio": of_torchaudio,
    "denoising-diffusion-pytorch": of_denoising_diffusion_pytorch,
    "mambapy": of_mambapy,
    "rtdl-revisiting-models": of_rtdl_revisiting_models,
    "small libraries": of_small_libraries,
    "open_clip_torch": of_open_clip,
    "flash-linear-attention": of_fla,
    "speechbrain": of_speechbrain,
    "segmentation-models-pytorch": of_segmentation_models_pytorch,
}


def models_of(library: str) -> dict[str, Build]:
    """Return name → a function that builds a model of a library, and what it takes."""
    return {name: partial(built, made) for name, made in LIBRARIES[library]().items()}


def healthy_models() -> dict[str, Build]:
    """Return the models by ``library/name``; a library that is not installed is left out, and said."""
    found = dict(mutant_models())
    heads = transformers_with_heads()
    found.update({f"transformers/{name}": heads[name] for name in TRANSFORMERS.split()})
    for library in LIBRARIES:
        try:
            found.update({f"{library}/{name}": build for name, build in models_of(library).items()})
        except ImportError as error:
            print(f"{library} left out: {error}", flush=True)
    try:
        found.update({f"x-transformers/{name}": build for name, build in x_transformers_models().items()})
    except ImportError as error:
        print(f"x-transformers left out: {error}", flush=True)
    return found

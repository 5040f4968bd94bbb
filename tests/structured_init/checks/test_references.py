"""Each reference is met by the library that it is named after."""

from __future__ import annotations

import math

import pytest
import timm
import torchvision
import transformers
from torch import nn

from structured_init import MambaReference, initialize
from structured_init.analysis import audit
from structured_init.checks.places import Place
from structured_init.checks.references import normal, references

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}


def equals(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Parameter → the references that it equals."""
    table = audit(model).table().set_index("parameter")
    return {name.split(" = ")[0]: tuple(filter(None, said.split("; "))) for name, said in table["equals"].items()}


def vit(**changes) -> nn.Module:
    return timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=64, num_heads=4, **changes)


def test_layers_of_torch_equal_torchs_default():
    model = nn.ModuleDict({
        "linear": nn.Linear(64, 96), "conv": nn.Conv2d(8, 16, 3), "depthwise": nn.Conv2d(32, 32, 5, groups=32),
        "embedding": nn.Embedding(50, 32), "lstm": nn.LSTM(48, 32), "norm": nn.LayerNorm(64),
        "batch_norm": nn.BatchNorm2d(8), "attention": nn.MultiheadAttention(64, 4),
        "crossed": nn.MultiheadAttention(64, 4, kdim=32, vdim=48, add_bias_kv=True),
    })  # fmt: skip
    found = equals(model)
    constants = {record.name for record in audit(model).records if record.kind == "constant"}
    others = {name for name, names in found.items() if "torch" not in names} - constants
    xavier = {"attention.in_proj_weight", *(f"crossed.{each}_proj_weight" for each in "qkv")}
    # torch divides the parameters of recurrent layers by the root of the hidden size, whatever they multiply.
    recurrent = {f"lstm.{each}_l0" for each in ("weight_ih", "bias_ih", "bias_hh")}
    few = {"conv.bias"}  # of fewer than 24 numbers nothing is said
    assert others == xavier | recurrent | few | {"crossed.bias_k", "crossed.bias_v"}
    assert all("Xavier uniform" in found[name] for name in xavier)


@pytest.mark.parametrize(
    ("mode", "qkv", "patches", "head"),
    [
        ("", "timm", "torch", "timm"),
        ("jax", "Xavier uniform", "LeCun normal, cut", None),
        ("moco", "Xavier uniform per third", "torch", "Xavier uniform"),
    ],
)
def test_the_modes_of_timms_vision_transformer_are_told_apart(mode, qkv, patches, head):
    found = equals(vit(weight_init=mode))
    assert qkv in found["blocks.0.attn.qkv.weight"]
    assert patches in found["patch_embed.proj.weight"]
    assert found["head.weight"] == () if head is None else head in found["head.weight"]
    assert "timm" in found["pos_embed"]
    assert "timm token, N(0, 1e-6²)" in found["cls_token"]
    if mode != "jax":
        assert "JAX ViT, N(0, 1e-6²)" not in found["blocks.0.mlp.fc1.bias"]


def test_a_convolutional_network_equals_kaiming_by_outputs():
    found = equals(torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=10))
    convolutions = [name for name in found if "conv" in name or "downsample.0" in name]
    assert len(convolutions) == 12
    assert all(found[name][0] == "Kaiming normal fan_out" for name in convolutions)
    assert found["fc.weight"][0] == "torch"


def test_gpt2_scales_what_goes_into_the_residual_stream_with_depth():
    config = transformers.GPT2Config(n_embd=64, n_layer=3, n_head=4, vocab_size=90, bos_token_id=0, eos_token_id=0)
    found = equals(transformers.GPT2LMHeadModel(config))
    for block in range(3):
        assert "transformers" in found[f"transformer.h.{block}.attn.c_attn.weight"]
        for name in ("attn.c_proj", "mlp.c_proj"):
            assert found[f"transformer.h.{block}.{name}.weight"][0] == "GPT-2 depth scale σ/√(2n)"
    assert {"timm", "transformers"} <= set(found["transformer.wte.weight"])


@pytest.mark.parametrize("std", [0.02, 0.05])
def test_bert_equals_the_range_of_its_configuration(std):
    config = transformers.BertConfig(vocab_size=60, max_position_embeddings=32, initializer_range=std, **SMALL)
    model = transformers.BertModel(config)
    found = {name: names for name, names in equals(model).items() if name.endswith("weight") and "Norm" not in name}
    assert len(found) == 16
    assert all("transformers" in names for names in found.values())
    assert any("timm" in names for names in found.values()) == (std == 0.02)


@pytest.mark.filterwarnings("ignore")
def test_what_mamba_ssm_draws_is_known():
    config = transformers.MambaConfig(hidden_size=64, num_hidden_layers=2, state_size=8, vocab_size=60)
    model = transformers.MambaForCausalLM(config)
    initialize(model, MambaReference(), seed=0)
    found = equals(model)
    mixer = "backbone.layers.1.mixer"
    assert "mamba-ssm depth scale 1/√(i·n)" in found[f"{mixer}.out_proj.weight"]
    assert "torch" in found[f"{mixer}.in_proj.weight"]


def test_depth_scales_are_those_of_their_papers():
    found = references(Place("weight", 768, 768, layers=12))
    assert found["GPT-2 depth scale σ/√(2n)"] == normal(0.02 / math.sqrt(24))
    assert found["GPT-NeoX depth scale 2/(n√i)"] == normal(2 / (12 * math.sqrt(768)))
    assert found["small init √(2/5i)"] == normal(math.sqrt(2 / (5 * 768)))


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (nn.init.xavier_uniform_, "Xavier uniform"),
        (nn.init.kaiming_normal_, "Kaiming normal fan_in"),
    ],
)
def test_an_embedding_equals_what_torch_draws_by_its_fans(draw, name):
    embedding = nn.Embedding(300, 16)
    draw(embedding.weight)
    assert name in equals(embedding)["weight"]

"""Shared weights and numbers computed from weights: the report says what one write means for the others."""

from __future__ import annotations

import torch
import transformers
from hosts import of_transformers
from timm.layers import Attention
from torch import nn

from structured_init import Default, KaimingUniform, Mimetic, initialize


def test_projections_shared_by_two_layers_are_noted():
    layers = nn.ModuleList([Attention(8, num_heads=2), Attention(8, num_heads=2)])
    layers[1].qkv.weight = layers[0].qkv.weight
    report = initialize(layers, Mimetic(positions="keep"))
    assert report.notes["0.qkv.weight"] == "shared with 1.qkv.weight: what was written to it last holds for all"
    assert "0.proj.weight" not in report.notes
    assert "note 0.qkv.weight: shared with 1.qkv.weight" in report.table()


def test_an_embedding_tied_to_the_head_is_noted_only_where_it_is_set():
    config = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=11, n_positions=8)
    assert "shared with" not in str(initialize(transformers.GPT2LMHeadModel(config), Mimetic(positions="keep")).notes)
    report = initialize(transformers.GPT2LMHeadModel(config), KaimingUniform())
    assert report.notes["transformer.wte.weight"].startswith("shared with lm_head.weight")


def test_layers_that_albert_runs_several_times_are_noted():
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "embedding_size": 4, "vocab_size": 11}
    model = of_transformers("AlbertModel", **sizes, num_hidden_layers=6, num_hidden_groups=1)
    assert initialize(model, Default()).notes == {}
    note = "its 6 layers share 1 set(s) of weights: one initialization for all that share"
    assert initialize(model, KaimingUniform()).notes == {"encoder": note}
    model = of_transformers("AlbertModel", **sizes, num_hidden_layers=2, num_hidden_groups=2)
    assert initialize(model, KaimingUniform()).notes == {}


class Magnitude(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight.detach().norm(dim=1))


class Adapted(nn.Module):
    """As peft builds a layer with DoRA: the names are what it is known by."""

    def __init__(self, dora):
        super().__init__()
        self.base_layer = nn.Linear(4, 4)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(4, 2, bias=False)})
        magnitudes = {"default": Magnitude(self.base_layer.weight)} if dora else {}
        self.lora_magnitude_vector = nn.ModuleDict(magnitudes)


def test_a_dora_magnitude_whose_weight_was_overwritten_is_warned_of():
    model = nn.ModuleDict({"proj": Adapted(dora=True), "other": nn.Linear(4, 4)})
    assert initialize(model, Default()).warnings == []
    report = initialize(model, KaimingUniform())
    assert report.warnings == [
        "'proj.lora_magnitude_vector' was computed from the weight that was overwritten and no longer is its norm:"
        " initialize before DoRA is put in, or compute it anew"
    ]
    norm = model["proj"].base_layer.weight.norm(dim=1)
    assert not torch.allclose(norm, model["proj"].lora_magnitude_vector["default"].weight)


def test_lora_without_magnitudes_is_not_warned_of():
    assert initialize(nn.ModuleDict({"proj": Adapted(dora=False)}), KaimingUniform()).warnings == []

"""MLPs are found by the shapes of their matrices."""

from __future__ import annotations

import pytest
import timm
from torch import nn
from transformers.pytorch_utils import Conv1D

from structured_init.hosts.mlp import mlps

D, HIDDEN = 6, 10


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


# what is built → the places of those that lead to the hidden width; the last one leads back
MLPS = {
    "plain": ([linear(D, HIDDEN), nn.Dropout(0.5), linear(HIDDEN, D)], [0]),
    "gated": ([linear(D, HIDDEN), linear(D, HIDDEN), linear(HIDDEN, D)], [0, 1]),
    "fused": ([linear(D, 2 * HIDDEN), linear(HIDDEN, D)], [0]),
    "transposed": ([Conv1D(HIDDEN, D), Conv1D(D, HIDDEN)], [0]),
    "transposed and fused": ([Conv1D(2 * HIDDEN, D), Conv1D(D, HIDDEN)], [0]),
    "of pixels": ([nn.Conv2d(D, HIDDEN, 1), nn.Conv2d(HIDDEN, HIDDEN, 3, groups=HIDDEN), nn.Conv2d(HIDDEN, D, 1)], [0]),
}


@pytest.mark.parametrize("kind", MLPS)
def test_maps_to_a_hidden_width_and_back_are_an_mlp(kind):
    layers, up = MLPS[kind]
    model = nn.Sequential(nn.LayerNorm(D), nn.Sequential(*layers))
    [(name, mlp)] = mlps(dict(model.named_modules())).items()
    assert (name, mlp.width) == ("1", D)
    assert [id(each) for each in (*mlp.up, mlp.down)] == [id(layers[k].weight) for k in (*up, -1)]


OTHERS = {
    "fused queries, keys and values": [linear(D, 3 * D), linear(D, D)],
    "keys and values": [linear(D, 2 * D), linear(D, D)],
    "one width": [linear(D, D), linear(D, D)],
    "three maps in a row": [linear(D, HIDDEN), linear(HIDDEN, 7), linear(7, D)],
    "another width behind": [linear(D, HIDDEN), linear(HIDDEN, D + 1)],
    "two ways back": [linear(D, HIDDEN), linear(D, HIDDEN), linear(HIDDEN, D), linear(HIDDEN, D)],
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_mlp_by_its_shapes_is_none(kind):
    assert mlps(dict(nn.Sequential(*OTHERS[kind]).named_modules())) == {}


def test_an_mlp_beside_attention_in_one_module_needs_the_parameters_of_attention():
    layer = nn.TransformerEncoderLayer(8, 2, 24)
    modules = dict(layer.named_modules())
    assert mlps(modules) == {}
    [mlp] = mlps(modules, list(layer.self_attn.parameters())).values()
    assert mlp.up == (layer.linear1.weight,)
    assert mlp.down is layer.linear2.weight


def test_the_innermost_module_is_named_in_the_order_of_the_model():
    model = timm.create_model("test_vit", num_classes=3)
    attending = [each for block in model.blocks for each in block.attn.parameters()]
    names = [f"blocks.{number}.mlp" for number in range(len(model.blocks))]
    assert list(mlps(dict(model.named_modules()), attending)) == names

from collections import OrderedDict

import pytest
import timm
import torch
import transformers
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from structured_init.analysis import repeated_blocks
from structured_init.analysis.blocks import blocks_of


def names(model: nn.Module) -> list[str]:
    return list(repeated_blocks(model))


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("vit_tiny_patch16_224", [f"blocks.{i}" for i in range(12)]),
        ("convmixer_768_32", [f"blocks.{i}" for i in range(32)]),
        ("resnet18", [f"layer{stage}.{i}" for stage in range(1, 5) for i in range(2)]),
        ("resnet10t", [f"layer{stage}.0" for stage in range(1, 5)]),  # one block per stage
        ("convnext_atto", [f"stages.{s}.blocks.{i}" for s, n in enumerate((2, 2, 6, 2)) for i in range(n)]),
    ],
)
def test_blocks_of_all_stages_are_found_in_order(architecture, expected):
    with torch.device("meta"):
        assert names(timm.create_model(architecture)) == expected


@pytest.mark.parametrize("norm", [weight_norm, spectral_norm])
def test_layers_with_a_computed_weight_are_of_one_kind_and_no_blocks_beside_true_ones(norm):
    stem = nn.Sequential(*(norm(nn.Linear(8, 8)) for _ in range(3)))
    assert names(stem) == ["0", "1", "2"]
    blocks = nn.Sequential(*(nn.Sequential(norm(nn.Linear(8, 8)), nn.ReLU()) for _ in range(2)))
    assert names(nn.ModuleDict({"stem": stem, "blocks": blocks})) == ["blocks.0", "blocks.1"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (transformers.GPT2Config(n_layer=3), 3),
        (transformers.MambaConfig(num_hidden_layers=3, hidden_size=16), 3),
        (transformers.T5Config(num_layers=2, num_decoder_layers=3), 5),  # not the sub-layers of different kinds
    ],
    ids=lambda value: type(value).__name__,
)
def test_layers_of_transformers_models_are_found(config, expected):
    with torch.device("meta"):
        assert len(names(transformers.AutoModel.from_config(config))) == expected


class Head(nn.Module):
    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        self.qkv = nn.Sequential(nn.Linear(dim, dim))


class HeadsBlock(nn.Module):
    """Attention with one module per head: more heads than blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Head() for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)


def test_heads_are_no_blocks():
    assert names(nn.Sequential(*[HeadsBlock() for _ in range(3)])) == ["0", "1", "2"]


def test_experts_are_no_blocks():
    def block():
        return nn.ModuleDict({"router": nn.Linear(8, 4), "experts": nn.ModuleList(Pair() for _ in range(8))})

    model = nn.Sequential(*(nn.Sequential(OrderedDict(block().items())) for _ in range(3)))
    assert names(model) == ["0", "1", "2"]
    alone = nn.ModuleDict({"experts": nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)) for _ in range(4))})
    assert blocks_of(alone) == {}


def test_dictionaries_in_a_list_are_opened_as_lists_in_it_are():
    model = nn.ModuleList(nn.ModuleDict({"mix": Pair(), "heads": HeadsBlock()}) for _ in range(2))
    assert names(model) == ["0.mix", "0.heads", "1.mix", "1.heads"]
    layers = nn.ModuleList(nn.ModuleDict({"mix": nn.Linear(8, 8), "point": nn.Linear(8, 8)}) for _ in range(2))
    assert names(layers) == ["0.mix", "0.point", "1.mix", "1.point"]


def test_numbered_blocks_in_a_dictionary_are_found_behind_a_stem_of_layers():
    stem = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 8))
    stack = nn.ModuleDict({f"layer{number}": HeadsBlock() for number in range(3)})
    model = nn.ModuleDict({"stem": stem, "stack": stack})
    assert names(model) == ["stack.layer0", "stack.layer1", "stack.layer2"]
    parts = nn.ModuleDict({"encoder": HeadsBlock(), "decoder": HeadsBlock()})
    assert "encoder" not in names(parts)


def test_shared_network_is_listed_once_and_compilation_leaves_no_trace():
    network = nn.Sequential(*[HeadsBlock() for _ in range(3)])
    module = nn.ModuleDict({"network": torch.compile(network, backend="eager"), "again": network})
    assert names(module) == ["network.0", "network.1", "network.2"]

"""MlpMean: W_1 + μ·1 in the first layer of every MLP, whatever host it lies in."""

from __future__ import annotations

import importlib

import pytest
import torch
import torchvision
from hosts import of_transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers.mlp import GatedMlp, GlobalResponseNormMlp, GluMlp, Mlp, SwiGLU, SwiGLUPacked
from torch import nn

from structured_init import (
    Compose,
    FirstLayer,
    KaimingUniform,
    MlpLayout,
    MlpMean,
    StructuredInitError,
    initialize,
    mlp_sites,
    register_mlp,
)
from structured_init.hosts.mlp import MLP

SHAPES = settings(max_examples=25, deadline=None, derandomize=True)


@pytest.fixture
def registry(monkeypatch):
    """The registry, put back as it was after the test."""
    monkeypatch.setattr(MLP, "_describe", dict(MLP._describe))


def shifts(model, start):
    """What a start added to each tensor: one number where all entries moved alike, None where they did not move."""
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    report = initialize(model, start)
    moved = {}
    for name, tensor in model.named_parameters():
        difference = (tensor.detach() - before[name]).double()
        if difference.any():
            assert difference.std(correction=0) < 1e-6
            moved[name] = difference.mean().item()
    assert {name for entry in report.changed for name in entry.names} == set(moved)
    return moved


@SHAPES
@given(st.integers(1, 12), st.integers(1, 20), st.floats(-2, 2).filter(lambda mean: abs(mean) > 0.01))
def test_every_entry_of_the_first_layer_moves_by_the_mean_and_nothing_else(width, hidden, mean):
    moved = shifts(nn.ModuleDict({"mlp": Mlp(width, hidden, dtype=torch.float64)}), MlpMean(mean))
    assert moved == {"mlp.fc1.weight": pytest.approx(mean)}


def test_a_first_layer_that_two_mlps_share_is_moved_once():
    model = nn.ModuleList([nn.ModuleDict({"mlp": Mlp(8, 32)}) for _ in range(2)])
    model[1]["mlp"].fc1.weight = model[0]["mlp"].fc1.weight
    before = model[0]["mlp"].fc1.weight.detach().clone()
    initialize(model, MlpMean(0.1))
    torch.testing.assert_close(model[1]["mlp"].fc1.weight, before + 0.1)


def test_the_report_tells_a_mean_where_the_standard_deviation_stays():
    model = Mlp(64, 128)
    std, mean = (f"{value:.2g}" for value in (model.fc1.weight.std(correction=0), model.fc1.weight.mean() + 0.05))
    report = " ".join(str(initialize(model, MlpMean(mean=0.05))).split())
    assert f"weight [MlpMean] std {std} → {std} (mean {mean})" in report


def test_the_variance_and_the_draw_are_those_of_the_start_before():
    first, second = (nn.ModuleDict({"mlp": Mlp(8, 32)}) for _ in range(2))
    initialize(first, KaimingUniform(), seed=1)
    initialize(second, Compose([KaimingUniform(), MlpMean(0.25)]), seed=1)
    torch.testing.assert_close(second["mlp"].fc1.weight, first["mlp"].fc1.weight + 0.25)
    assert torch.equal(second["mlp"].fc2.weight, first["mlp"].fc2.weight)


SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
TEXT = {**SMALL, "vocab_size": 11, "max_position_embeddings": 8}
DISTIL = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 24, "vocab_size": 11}
GPT2 = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 11, "n_positions": 8}
DINO = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
BART = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
BART |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 11}
HOSTS = {
    "mlp.fc1": lambda: of_transformers("ViTModel", **SMALL, image_size=8, patch_size=4),
    "intermediate.dense": lambda: of_transformers("BertModel", **TEXT),
    "ffn.lin1": lambda: of_transformers("DistilBertModel", **DISTIL),
    "mlp.c_fc": lambda: of_transformers("GPT2Model", **GPT2),
    "mlp.dense_h_to_4h": lambda: of_transformers("GPTNeoXModel", **TEXT),
    "mlp.gate_proj": lambda: of_transformers("LlamaModel", **TEXT, pad_token_id=0),
    ".mlp.fc1": lambda: of_transformers("Dinov2Model", **DINO),
    "fc1": lambda: of_transformers("BartModel", **BART),
    "linear1": lambda: nn.ModuleList([nn.TransformerEncoderLayer(16, 2, 24) for _ in range(2)]),
    ".linear1": lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2, 24), 2),
    "mlp.0": lambda: torchvision.models.VisionTransformer(8, 4, 2, 2, 16, 24),
}


@pytest.mark.parametrize("name", HOSTS)
def test_every_host_has_its_first_layers_and_no_others_moved(name):
    model = HOSTS[name]()
    expected = {full for full, _ in model.named_parameters() if full.endswith(f"{name}.weight")}
    moved = shifts(model, MlpMean(0.5))
    assert moved == dict.fromkeys(expected, pytest.approx(0.5))
    assert expected


@pytest.mark.parametrize("name", HOSTS)
def test_a_site_reads_what_the_hosts_layer_computes(name):
    """Row vectors: x W_1 is the layer without its bias, however it is stored."""
    model = HOSTS[name]().double()
    layers = [layer for full, layer in model.named_modules() if full.endswith(name)]
    sites = mlp_sites(model)
    assert len(sites) == len(layers) > 0
    for site, layer in zip(sites, layers, strict=True):
        x = torch.randn(3, 16, dtype=torch.float64)
        ours = x @ (site.first if site.gate is None else site.gate)
        bias = 0 if layer.bias is None else layer.bias
        torch.testing.assert_close(ours, layer(x) - bias)


@pytest.mark.parametrize("path", [path for path in MLP.known() if not path.startswith(__name__)])
def test_every_class_that_is_described_exists_and_is_a_module(path):
    package, _, name = path.rpartition(".")
    assert issubclass(getattr(importlib.import_module(package), name), nn.Module)


def gate_of(module, x):
    """What the activation is given, caught on its way."""
    caught = []
    module.act.register_forward_hook(lambda _, given, __: caught.append(given[0]))
    module(x)
    return caught[0]


@pytest.mark.parametrize("build", [SwiGLU, SwiGLUPacked, GluMlp], ids=["SwiGLU", "SwiGLUPacked", "GluMlp"])
@pytest.mark.parametrize("gated", ["gate", "value", "both"])
def test_of_a_gated_mlp_the_gate_is_what_goes_through_the_activation(build, gated):
    model = nn.ModuleDict({"mlp": build(8, 12, bias=False).double()})
    x = torch.ones(1, 8, dtype=torch.float64)
    (site,) = mlp_sites(model)
    gate, value = site.gate, site.first
    torch.testing.assert_close(gate_of(model["mlp"], x), x @ gate)
    initialize(model, MlpMean(0.5, gated=gated))
    (site,) = mlp_sites(model)
    torch.testing.assert_close(site.gate, gate + 0.5 * (gated != "value"))
    torch.testing.assert_close(site.first, value + 0.5 * (gated != "gate"))


@pytest.mark.parametrize("gated", ["gate", "value"])
def test_a_fused_gate_is_moved_apart_from_its_values(gated):
    """transformers 5.17 keeps both in ``weights_in`` and lets the first half through SiLU; 5.2x has two layers."""
    transformers = pytest.importorskip("transformers")
    config = transformers.Dinov2Config(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4, use_swiglu_ffn=True
    )
    model = transformers.Dinov2Model(config)
    (site,) = mlp_sites(model)
    before = site.gate, site.first
    initialize(model, MlpMean(0.5, gated=gated))
    torch.testing.assert_close(site.gate, before[0] + 0.5 * (gated == "gate"))
    torch.testing.assert_close(site.first, before[1] + 0.5 * (gated == "value"))
    mlp = site.module
    if hasattr(mlp, "weights_in"):
        assert torch.equal(mlp.weights_in.weight[: len(mlp.weights_in.weight) // 2].mT, site.gate)
    else:
        assert torch.equal(mlp.gate_proj.weight.mT, site.gate)


def test_convolutions_of_size_one_and_other_mlps_of_timm_are_known():
    model = nn.ModuleDict(
        {
            "convolution": Mlp(6, 10, use_conv=True),
            "response": GlobalResponseNormMlp(6, 10),
            "gmlp": GatedMlp(6, 10),
        }
    )
    moved = shifts(model, MlpMean(-0.125))
    assert moved == dict.fromkeys((f"{name}.fc1.weight" for name in model), pytest.approx(-0.125))
    assert [tuple(site.first.shape) for site in mlp_sites(model)] == [(6, 10)] * 3


def test_behind_a_fresh_layer_norm_the_network_computes_the_same_and_learns_otherwise(tiny_vit):
    """A normalized token sums to zero, so μ·1 adds nothing; the norm's own gradient sees it."""
    plain, moved = tiny_vit().double(), tiny_vit().double()
    initialize(moved, MlpMean(0.1))
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(plain(images), moved(images), rtol=0, atol=1e-10)
    gradients = [torch.autograd.grad(m(images).square().sum(), m.blocks[0].norm2.weight)[0] for m in (plain, moved)]
    assert (gradients[0] - gradients[1]).abs().max() > 1e-4


def test_where_selects_among_mlps(tiny_vit):
    assert set(shifts(tiny_vit(), MlpMean(0.1, where="blocks.1.mlp"))) == {"blocks.1.mlp.fc1.weight"}
    message = r"MlpMean: where='blocks.9.\*' selects none of the 2 MLPs \(blocks.0.mlp, blocks.1.mlp\)"
    with pytest.raises(StructuredInitError, match=message):
        initialize(tiny_vit(), MlpMean(0.1, where="blocks.9.*"))


class MyFeedForward(nn.Module):
    """Somebody's own."""

    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(4, 8), nn.Linear(8, 4)


class MyVariant(MyFeedForward):
    """A subclass, to be found over the method resolution order."""


def test_an_unknown_mlp_is_refused_in_one_line_until_it_is_described(registry):
    model = nn.ModuleDict({"block": nn.ModuleDict({"mlp": MyVariant()}), "out": nn.Linear(4, 2)})
    message = (
        "MlpMean found no MLP that it recognizes; the model has MyVariant: give `batch=…`, one or two samples, so that "
        "it is found by watching, or describe it with structured_init.register_mlp"
    )
    with pytest.raises(StructuredInitError, match=f"^{message}$"):
        initialize(model, MlpMean(0.1))
    register_mlp(MyFeedForward)(lambda module: MlpLayout(FirstLayer(module.wide.weight)))
    assert shifts(model, MlpMean(0.1)) == {"block.mlp.wide.weight": pytest.approx(0.1)}


def test_an_unknown_mlp_beside_known_ones_is_reported(tiny_vit):
    model = nn.ModuleDict({"vit": tiny_vit(), "decoder": nn.ModuleDict({"ffn": MyFeedForward()})})
    report = initialize(model, MlpMean(0.1))
    (message,) = report.skipped.values()
    assert message.startswith("MyFeedForward is not known: give `batch=…`")
    assert message.endswith("or describe it with structured_init.register_mlp")
    assert initialize(model, MlpMean(0.1, where="vit.*")).skipped == {}


def test_the_mean_has_no_default():
    with pytest.raises(TypeError, match="mean"):
        MlpMean()

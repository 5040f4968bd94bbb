"""The baselines: their distributions, and exactly the modules that they say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hosts import of_transformers
from scipy import stats
from torch import nn

from structured_init import (
    Compose,
    Default,
    KaimingUniform,
    Mimetic,
    StructuredInitError,
    TruncatedNormal,
    UniformProjections,
    initialize,
    state_space_sites,
)


def named(report):
    return {name for entry in report.entries if entry.set_by for name in entry.names}


def linears(model):
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def test_truncated_normal_has_the_distribution_of_timms_default(tiny_vit):
    host, ours = tiny_vit(seed=1, embed_dim=64), tiny_vit(seed=2, embed_dim=64)
    initialize(ours, TruncatedNormal())
    for name, module in linears(ours).items():
        reference = linears(host)[name]
        weight, expected = (m.weight.detach().flatten().numpy() for m in (module, reference))
        assert stats.ks_2samp(weight, expected).pvalue > 1e-3, name
        assert weight.std() == pytest.approx(0.02, rel=4 / (2 * weight.size) ** 0.5), name  # 4 standard errors
        assert not module.bias.any()
        assert not reference.bias.any()


def test_truncated_normal_has_the_std_it_is_given_and_is_cut_at_two():
    model = nn.Sequential(nn.Linear(200, 200))
    initialize(model, TruncatedNormal(std=0.1))
    assert model[0].weight.std().item() == pytest.approx(0.1, rel=0.02)
    initialize(model, TruncatedNormal(std=1.0))
    assert 1.9 < model[0].weight.abs().max().item() <= 2
    assert model[0].weight.std().item() == pytest.approx(stats.truncnorm(-2, 2).std(), rel=0.02)


@pytest.mark.parametrize("build", [lambda: nn.Linear(30, 50), lambda: nn.Conv2d(6, 20, 3, groups=2)])
def test_kaiming_uniform_is_pytorchs_own_default(build):
    torch.manual_seed(0)
    host, ours = build(), build()
    initialize(nn.Sequential(ours), KaimingUniform())
    for kind in ("weight", "bias"):
        left, right = (getattr(module, kind).detach().flatten().numpy() for module in (host, ours))
        assert stats.ks_2samp(left, right).pvalue > 1e-3
        assert np.abs(right).max() == pytest.approx(np.abs(left).max(), rel=0.15)


@pytest.mark.parametrize(
    ("start", "kinds"),
    [
        (KaimingUniform(), (nn.Linear, nn.Conv2d)),
        (TruncatedNormal(convolutions=True), (nn.Linear, nn.Conv2d)),
        (TruncatedNormal(), nn.Linear),
    ],
)
def test_norms_tokens_positions_and_embeddings_stay_the_hosts(tiny_vit, start, kinds):
    model = nn.ModuleDict({"vit": tiny_vit(reg_tokens=2, init_values=0.1), "words": nn.Embedding(5, 4)})
    touched = {name: isinstance(m, kinds) for name, m in model.named_modules()}
    expected = {name for name, _ in model.named_parameters() if touched[name.rpartition(".")[0]]}
    assert named(initialize(model, start)) == expected
    assert {"vit.cls_token", "vit.reg_token", "vit.pos_embed", "words.weight"}.isdisjoint(expected)


def test_states_are_forgotten_as_the_host_has_it():
    model = of_transformers("MambaModel", hidden_size=16, num_hidden_layers=1, vocab_size=11)
    (site,) = state_space_sites(model)
    before = site.half_life
    assert "layers.0.mixer.dt_proj.weight" in named(initialize(model, KaimingUniform()))
    torch.testing.assert_close(site.half_life, before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("keys", "names"), [(None, {"in_proj_weight"}), (6, {"q_proj_weight", "k_proj_weight", "v_proj_weight"})]
)
def test_multihead_attention_has_its_input_projections_filled(keys, names):
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(64, 4, kdim=keys, vdim=keys)})
    report = initialize(model, KaimingUniform())
    always = {"in_proj_bias", "out_proj.weight", "out_proj.bias"}
    assert named(report) == {f"attention.{name}" for name in names | always}
    for name in names:
        weight = getattr(model["attention"], name)
        bound = weight.shape[1] ** -0.5
        assert 0.95 * bound < weight.abs().max().item() <= bound


def test_transposed_conv1d_of_gpt2_uses_its_first_axis_as_fan_in():
    model = of_transformers("GPT2Model", n_embd=32, n_layer=1, n_head=2, vocab_size=11, n_positions=8)
    report = initialize(model, KaimingUniform())
    projections = {"attn.c_attn": 32, "attn.c_proj": 32, "mlp.c_fc": 32, "mlp.c_proj": 128}
    assert named(report) == {f"h.0.{name}.{kind}" for name in projections for kind in ("weight", "bias")}
    for name, fan_in in projections.items():
        weight = model.h[0].get_submodule(name).weight
        assert weight.shape[0] == fan_in
        assert 0.95 * fan_in**-0.5 < weight.abs().max().item() <= fan_in**-0.5
    initialize(model, TruncatedNormal())
    assert model.h[0].mlp.c_fc.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert not model.h[0].mlp.c_fc.bias.any()


def test_a_model_without_layers_is_refused_with_what_it_has():
    model = nn.Sequential(nn.Embedding(3, 2), nn.LayerNorm(2))
    message = "KaimingUniform found no linear or convolutional layer; the model has Embedding, LayerNorm"
    with pytest.raises(StructuredInitError, match=f"^{message}$"):
        initialize(model, KaimingUniform())
    initialize(model, Default())


def language_model(kind):
    if kind == "gpt2":
        return of_transformers("GPT2LMHeadModel", n_embd=64, n_layer=1, n_head=4, vocab_size=11, n_inner=96)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4}
    return of_transformers("LlamaForCausalLM", **sizes, num_key_value_heads=2, vocab_size=11)


def test_zero_projections_without_an_mlp_are_refused():
    model = nn.ModuleDict({"attn": nn.MultiheadAttention(16, 2)})
    with pytest.raises(StructuredInitError, match=r"found no MLP beside attention.*leave MLPs as they are"):
        initialize(model, UniformProjections(None, 0.0, 0.0))


LAST = {
    "gpt2": {"attn.c_proj.weight", "mlp.c_proj.weight"},
    "llama": {"self_attn.o_proj.weight", "mlp.down_proj.weight"},
    "vit": {"attn.proj.weight", "mlp.fc2.weight"},
}


def test_zero_projections_take_the_biases_beside_them_that_are_not_zero():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
    model, tokens = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(2, 5, 16)
    for each in model.layers:
        nn.init.ones_(each.self_attn.out_proj.bias)
    initialize(model, UniformProjections(None, 0.0), batch=tokens)
    assert not any(each.self_attn.out_proj.bias.any() for each in model.layers)
    assert all(each.linear2.bias.any() for each in model.layers)
    initialize(model, UniformProjections(None, None, 0.0), batch=tokens)
    assert torch.equal(model(tokens), tokens)


@pytest.mark.parametrize("kind", LAST)
def test_zero_projections_set_the_two_last_layers_of_each_block_alone_so_that_it_adds_nothing(kind, tiny_vit):
    model = tiny_vit(embed_dim=64) if kind == "vit" else language_model(kind)
    depth = len(model.blocks) if kind == "vit" else 1
    blocks = [name for name, _ in model.named_modules() if name.endswith((".attn", ".self_attn", ".mlp"))]
    report = initialize(model, UniformProjections(query_key_value=None, output=0.0, mlp_output=0.0))
    assert {".".join(name.split(".")[-3:]) for name in named(report)} == LAST[kind]
    assert len(report.changed) == 2 * depth
    tokens = torch.randn(1, 5, 64)
    for block in blocks if kind == "vit" else [name for name in blocks if name.endswith("mlp")]:
        assert not model.get_submodule(block)(tokens).any(), block


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_uniform_projections_have_the_size_that_they_are_given_in_whatever_way_the_host_stores_them(kind):
    """KellerJordan/modded-nanogpt: std = 0.5 · dim^(−1/2), bound = √3 · std."""
    model = language_model(kind)
    initialize(model, UniformProjections())
    attention = model.get_submodule("transformer.h.0.attn" if kind == "gpt2" else "model.layers.0.self_attn")
    bound = 3**0.5 * 0.5 * 64**-0.5
    for name, weight in attention.named_parameters():
        if weight.ndim == 2:
            values = weight.detach().flatten().double().numpy()
            assert stats.kstest(values, stats.uniform(-bound, 2 * bound).cdf).pvalue > 1e-3, name


def test_a_baseline_behind_what_it_overwrites_is_warned_of(tiny_vit):
    assert initialize(tiny_vit(), Compose([KaimingUniform(), Mimetic()])).warnings == []
    assert initialize(tiny_vit(), Compose([Mimetic(), KaimingUniform()])).warnings == [
        "KaimingUniform draws anew what Mimetic wrote before: put KaimingUniform first in Compose"
    ]

"""MambaReference: the distributions of mamba-ssm's own initialization, in either host, and in mamba-ssm itself."""

from __future__ import annotations

import importlib
import math

import hosts
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn

from structured_init import Default, MambaReference, initialize, state_space_sites

WIDTH, LAYERS, STATES = 96, 4, 16
SIZES = {"vocab_size": 70, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "state_size": STATES}


def mamba(**changes):
    return hosts.mamba(**{**SIZES, **changes})


def mamba2(**changes):
    return hosts.mamba2(**{**SIZES, "num_heads": 48, "head_dim": 4, **changes})


def is_uniform(values, bound):
    """Kolmogorov and Smirnov, and the extremes."""
    values = values.detach().double().flatten().numpy()
    assert np.abs(values).max() <= bound * (1 + 1e-6)
    assert stats.kstest(values, stats.uniform(-bound, 2 * bound).cdf).pvalue > 1e-3


def together(model, name):
    """One tensor of all mixers, side by side."""
    return torch.cat([model.get_parameter(f"{site.name}.{name}").flatten() for site in state_space_sites(model)])


@pytest.mark.parametrize("build", [mamba, mamba2])
def test_projections_and_convolutions_are_pytorch_s_default_and_outputs_smaller_by_depth(build):
    model = build()
    initialize(model, MambaReference())
    is_uniform(together(model, "in_proj.weight"), WIDTH**-0.5)
    is_uniform(together(model, "out_proj.weight"), (2 * WIDTH) ** -0.5 / LAYERS**0.5)
    is_uniform(together(model, "conv1d.weight"), 0.5)
    is_uniform(together(model, "conv1d.bias"), 0.5)
    if build is mamba:
        is_uniform(together(model, "x_proj.weight"), (2 * WIDTH) ** -0.5)
        is_uniform(together(model, "dt_proj.weight"), 6**-0.5)  # R = 96 / 16


@pytest.mark.parametrize("build", [mamba, mamba2])
def test_step_sizes_are_log_uniform_between_a_thousandth_and_a_tenth(build):
    model = build()
    initialize(model, MambaReference())
    step = torch.cat([F.softplus(site.dt_bias.double()) for site in state_space_sites(model)]).numpy()
    assert 0.001 <= step.min() * 1.0001 < 0.0012
    assert 0.08 < step.max() <= 0.1 * 1.0001
    assert stats.kstest(np.log(step), stats.uniform(math.log(1e-3), math.log(100)).cdf).pvalue > 1e-3


def test_decays_of_mamba_count_its_states_and_those_of_mamba_2_are_uniform():
    model = mamba()
    initialize(model, MambaReference())
    for site in state_space_sites(model):
        torch.testing.assert_close(site.A_log.exp(), torch.arange(1.0, STATES + 1).expand(2 * WIDTH, STATES))
        assert site.D.eq(1).all()
    model = mamba2()
    initialize(model, MambaReference())
    rates = torch.cat([site.A_log.exp().flatten() for site in state_space_sites(model)]).double().numpy()
    assert stats.kstest(rates, stats.uniform(1, 15).cdf).pvalue > 1e-3
    assert all(site.D.eq(1).all() for site in state_space_sites(model))


@pytest.mark.parametrize("build", [mamba, mamba2])
def test_embeddings_are_normal_and_an_untied_head_is_pytorch_s_default(build):
    model = build(tie_word_embeddings=False)
    initialize(model, MambaReference())
    words = model.get_input_embeddings().weight.detach().flatten().double().numpy()
    assert stats.kstest(words, stats.norm(0, 0.02).cdf).pvalue > 1e-3
    is_uniform(model.lm_head.weight, WIDTH**-0.5)
    tied = build(tie_word_embeddings=True)
    initialize(tied, MambaReference())
    assert torch.equal(tied.lm_head.weight, model.get_input_embeddings().weight)


@pytest.mark.parametrize("build", [mamba, mamba2])
def test_every_number_but_those_of_norms_is_set(build):
    report = initialize(build(), MambaReference())
    left = [name for entry in report.entries if not entry.set_by for name in entry.names]
    assert left
    assert all("norm" in name for name in left)
    assert report.warnings == []


def test_biases_of_projections_are_zero():
    model = mamba(use_bias=True)
    with torch.no_grad():
        for site in state_space_sites(model):
            site.module.in_proj.bias.normal_()
            site.module.out_proj.bias.normal_()
    initialize(model, MambaReference())
    assert not together(model, "in_proj.bias").any()
    assert not together(model, "out_proj.bias").any()


def test_mixers_that_are_not_selected_stay_the_host_s():
    host, model = mamba(), mamba()
    initialize(host, Default())
    initialize(model, MambaReference(where="layers.1.mixer"))
    changed = {n for n, p in model.state_dict().items() if not torch.equal(p, host.state_dict()[n])}
    mixers = {name for name in changed if ".mixer." in name}
    assert mixers
    assert all(name.startswith("backbone.layers.1.mixer.") for name in mixers)
    is_uniform(model.backbone.layers[1].mixer.out_proj.weight, (2 * WIDTH) ** -0.5 / LAYERS**0.5)  # of all four
    initialize(model, MambaReference(num_layers=16))
    is_uniform(model.backbone.layers[1].mixer.out_proj.weight, (2 * WIDTH) ** -0.5 / 4)


@pytest.mark.parametrize("kind", ["Mamba", "Mamba2"])
def test_mamba_ssm_s_own_models_have_these_distributions(mamba_ssm, kind):
    """Two samples, of its own initialization and of ours, tensor by tensor."""
    models = importlib.import_module("mamba_ssm.models.mixer_seq_simple")
    sizes = {"layer": kind, "d_state": STATES} | ({"headdim": 4} if kind == "Mamba2" else {})
    torch.manual_seed(0)
    layers = [
        getattr(mamba_ssm, kind)(WIDTH, **{k: v for k, v in sizes.items() if k != "layer"}) for _ in range(LAYERS)
    ]
    model = nn.ModuleDict({"embedding": nn.Embedding(70, WIDTH), "layers": nn.ModuleList(layers)})
    model.apply(lambda module: models._init_weights(module, n_layer=LAYERS))
    theirs = {name: value.clone() for name, value in model.state_dict().items()}
    initialize(model, MambaReference())
    kinds = {name.removeprefix("layers.0.") for name in theirs if name.startswith("layers.0.")}
    assert {"A_log", "D", "in_proj.weight", "out_proj.weight", "conv1d.weight", "conv1d.bias"} < kinds
    for name in kinds:
        if "norm" in name:
            continue
        old, new = (
            torch.cat([values[f"layers.{i}.{name}"].flatten() for i in range(LAYERS)]).double().numpy()
            for values in (theirs, model.state_dict())
        )
        if name == "D" or (name == "A_log" and kind == "Mamba"):
            np.testing.assert_allclose(new, old, rtol=1e-6)
        else:
            assert stats.ks_2samp(old, new).pvalue > 1e-3, name
            assert not np.array_equal(old, new)
    old, new = theirs["embedding.weight"].flatten().numpy(), model["embedding"].weight.detach().flatten().numpy()
    assert stats.ks_2samp(old, new).pvalue > 1e-3


def test_a_layer_that_calls_its_output_projection_otherwise_is_told_that_it_was_not_divided():
    model = mamba()
    for layer in model.backbone.layers:
        layer.mixer.out_proj, layer.mixer.out = None, layer.mixer.out_proj
    report = initialize(model, MambaReference())
    is_uniform(together(model, "out.weight"), (2 * WIDTH) ** -0.5)
    assert "no output projection was divided by √layers: no linear layer of it is called 'out_proj'" in str(report)
    assert "no output projection" not in str(initialize(mamba(), MambaReference()))

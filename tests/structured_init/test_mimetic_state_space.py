"""MimeticStateSpace: each component against its formula, alone, in every host."""

from __future__ import annotations

import math
import re

import hosts
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from structured_init import MimeticStateSpace, StructuredInitError, initialize, state_space_sites
from structured_init.ssm.mimetic import step_bias

COMPONENTS = ("decay", "step", "correlate", "convolution")
WRITES = {
    "decay": {"A_log"},
    "step": {"dt_weight", "dt_bias"},
    "correlate": {"C"},
    "convolution": {"conv_weight", "conv_bias"},
}
PARTS = ("A_log", "dt_weight", "dt_bias", "B", "C", "conv_weight", "conv_bias", "D")


def mamba(**changes):
    return scrambled_biases(hosts.mamba(**changes))


def mamba2(**changes):
    return scrambled_biases(hosts.mamba2(**changes))


def scrambled_biases(model):
    """transformers starts the convolution's bias at zero, where writing zero would show nothing."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if name.endswith("conv1d.bias"):
            nn.init.normal_(parameter, generator=generator)
    return model


def only(component, **options):
    return MimeticStateSpace(**{name: name == component for name in COMPONENTS}, scan_scale="paper", **options)


def read(model):
    return [{part: getattr(site, part) for part in PARTS} for site in state_space_sites(model)]


def start(model, initializer, seed=0):
    before = read(model)
    report = initialize(model, initializer, seed=seed)
    return before, read(model), report


@pytest.mark.parametrize("build", [mamba, mamba2])
@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_alone_writes_its_own_parameters_and_no_others(build, component):
    before, after, report = start(build(), only(component))
    assert len(before) == 3
    for old, new in zip(before, after, strict=True):
        assert {part for part in PARTS if not torch.equal(old[part], new[part])} == WRITES[component]
    assert {by for entry in report.changed for by in entry.set_by} == {f"MimeticStateSpace: {component}"}


@pytest.mark.parametrize("build", [mamba, mamba2])
@pytest.mark.parametrize("component", COMPONENTS)
def test_without_a_component_the_others_are_as_with_it(build, component):
    full = start(build(), MimeticStateSpace(scan_scale="paper"))[1]
    before, without, _ = start(build(), MimeticStateSpace(**{component: False}, scan_scale="paper"))
    for host, old, new in zip(before, full, without, strict=True):
        for part in PARTS:
            assert torch.equal(new[part], host[part] if part in WRITES[component] else old[part])


def test_both_readings_of_the_decay_are_the_paper_s_formula_of_the_host_s_start():
    """A = −exp(−c · A_log): with the host's log n that is −n^(−c); filled with 1 in place of log n, −e^(−c)."""
    numbers = torch.arange(1.0, 5.0)
    scaled = start(mamba(), only("decay", decay_reading="scale", decay_c=2.0))[1]
    filled = start(mamba(), only("decay", decay_c=2.0))[1]
    for each in scaled:
        torch.testing.assert_close(each["A_log"].exp(), (numbers**-2.0).expand(24, 4))
    for each in filled:
        torch.testing.assert_close(each["A_log"].exp(), torch.full((24, 4), math.exp(-2)))


def test_what_layers_share_is_written_once():
    shared, alone = mamba(), mamba()
    mixers = [layer.mixer for layer in shared.backbone.layers]
    for mixer in mixers[1:]:
        mixer.A_log, mixer.x_proj.weight = mixers[0].A_log, mixers[0].x_proj.weight
    initializer = MimeticStateSpace(decay_reading="scale", decay_c=2.0, scan_scale="paper")
    (first, *_), (expected, *_) = (start(model, initializer)[1] for model in (shared, alone))
    assert torch.equal(first["A_log"], expected["A_log"])
    assert torch.equal(first["C"], expected["C"])


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.floats(1e-4, 20))
def test_the_step_bias_is_the_inverse_of_softplus(value):
    assert torch.nn.functional.softplus(torch.tensor(step_bias(value), dtype=torch.float64)).item() == pytest.approx(
        value, rel=1e-9
    )


@pytest.mark.parametrize("build", [mamba, mamba2])
def test_the_step_is_one_for_every_input(build):
    model = build()
    initialize(model, only("step"))
    (site, *_) = state_space_sites(model)
    step = site.layout.select(model.backbone.embeddings(torch.randint(11, (2, 9)))).step
    torch.testing.assert_close(step, torch.ones_like(step))
    torch.testing.assert_close(site.step, torch.ones(site.num_heads, dtype=torch.float64))


def test_c_is_mixed_half_with_b():
    before, after, _ = start(mamba2(), only("correlate"))
    for old, new in zip(before, after, strict=True):
        torch.testing.assert_close(new["C"], 0.5 * old["C"] + 0.5 * old["B"])
        assert torch.equal(new["B"], old["B"])


@pytest.mark.parametrize("build", [mamba, mamba2])
def test_the_short_convolution_passes_its_input_through(build):
    model = build()
    initialize(model, only("convolution"))
    conv = model.backbone.layers[0].mixer.conv1d
    x = torch.randn(1, conv.in_channels, 9)
    torch.testing.assert_close(conv(x)[..., :9], x)


def test_with_all_components_the_layer_is_linear_attention_with_next_to_no_decay():
    """Δ = 1, A ≈ 0: y_i = Σ_{j ≤ i} (C_i · B_j) x_j, up to the decay of 0.03 % a token."""
    model = mamba2(num_hidden_layers=1)
    initialize(model, MimeticStateSpace(decay_c=20.0))
    (site,) = state_space_sites(model)
    from structured_init.analysis import implicit_attention

    hidden = torch.randn(1, 8, 12)
    matrices, scanned = implicit_attention(site.module, hidden)
    written, read = (torch.nn.functional.silu(hidden @ each[0])[0] for each in (site.B, site.C))
    torch.testing.assert_close(matrices[0, 0], (read @ written.mT).tril(), atol=1e-5, rtol=1e-4)
    inner = torch.nn.functional.silu(hidden @ site.module.in_proj.weight[24:48].mT)
    torch.testing.assert_close(scanned.values.flatten(2), inner)


def test_layers_are_chosen_by_number_and_by_name():
    for options in ({"layers": [1]}, {"layers": [-2]}, {"where": "layers.1.mixer"}):
        before, after, _ = start(mamba(), MimeticStateSpace(**options))
        changed = [any(not torch.equal(o[p], n[p]) for p in PARTS) for o, n in zip(before, after, strict=True)]
        assert changed == [False, True, False]
    report = initialize(mamba(), MimeticStateSpace(where=["layers.1.mixer", "layers.9.*"]))
    assert report.warnings == ["MimeticStateSpace: where: 'layers.9.*' selects no state-space layer"]


def test_the_report_measures_what_every_component_does():
    report = initialize(mamba(num_hidden_layers=1), MimeticStateSpace())
    said = " ".join(str(report).split())
    assert re.search(r"A_log \[MimeticStateSpace: decay\] std 0\.\d+ → 0 \(mean -8\)", said)
    (measured,) = report.to_dict()["measures"].values()
    half = measured["half-life (tokens), median"]
    assert half[1] == pytest.approx(math.log(2) * math.exp(8), rel=1e-3)  # 2,066 tokens
    assert half[0] < 100
    assert measured["Δ, median"][1] == pytest.approx(1, abs=1e-6)
    assert measured["largest W_Δ"][1] == 0 < measured["largest W_Δ"][0]
    assert measured["convolution − identity (rms)"][1] == 0 < measured["convolution − identity (rms)"][0]
    assert "‖CᵀB − I‖" in said
    switched_off = initialize(mamba(num_hidden_layers=1), only("convolution"))
    (measured,) = switched_off.measures.values()
    still = {name for name, (before, after) in measured.items() if before == after}
    assert still == {name for name in measured if not name.startswith(("convolution", "scan"))}


def test_mamba_ssm_s_own_classes_are_started_alike(mamba_ssm):
    options = {"d_model": 12, "d_state": 4, "d_conv": 4}
    for ours, theirs in (
        (mamba(num_hidden_layers=1), mamba_ssm.Mamba(**options, dt_rank=1)),
        (mamba2(num_hidden_layers=1), mamba_ssm.Mamba2(**options, headdim=6, ngroups=2)),
    ):
        (mixer,) = (site.module for site in state_space_sites(ours))
        theirs.load_state_dict(mixer.state_dict())
        for module in (mixer, theirs):
            initialize(nn.ModuleDict({"mixer": module}), MimeticStateSpace(), seed=5)
        for name, tensor in theirs.state_dict().items():
            assert torch.equal(tensor, mixer.state_dict()[name])


class OwnMixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.A_log = nn.Parameter(torch.zeros(3))


@pytest.mark.parametrize(
    ("build", "options", "message"),
    [
        (
            lambda: nn.ModuleDict({"m": OwnMixer()}),
            {},
            "found no state-space layer that it recognizes; the model has OwnMixer: describe it with "
            "structured_init.register_state_space",
        ),
        (mamba, {"layers": [0, 3]}, "names layer 3, but the model's 3 state-space layers are numbered 0 to 2"),
        (mamba, {"where": "x.*"}, "where='x.*' selects none of the 3 state-space layers (backbone.layers.0.mixer"),
    ],
)
def test_a_model_it_cannot_start_is_refused_in_one_line(build, options, message):
    with pytest.raises(StructuredInitError, match=re.escape(message)) as caught:
        initialize(build(), MimeticStateSpace(**options))
    assert "\n" not in str(caught.value)


def test_an_unknown_mixer_beside_known_ones_is_reported():
    report = initialize(nn.ModuleDict({"known": mamba(num_hidden_layers=1), "own": OwnMixer()}), MimeticStateSpace())
    assert report.skipped == {"own": "OwnMixer is not known: describe it with structured_init.register_state_space"}

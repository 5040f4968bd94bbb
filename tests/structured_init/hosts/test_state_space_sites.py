"""State-space sites are what their mixers compute: Mamba and Mamba-2 of any host, hybrids, gated delta rules."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from transformers.models.falcon_h1.modeling_falcon_h1 import FalconH1Mixer
from transformers.models.jamba.modeling_jamba import JambaMambaMixer
from transformers.models.mamba.modeling_mamba import MambaMixer
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHMamba2Mixer
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet
from transformers.models.zamba2.modeling_zamba2 import Zamba2MambaMixer

from structured_init import (
    MambaReference,
    MimeticStateSpace,
    StateSpaceLayout,
    StructuredInitError,
    initialize,
    register_state_space,
    state_space_sites,
)
from structured_init.hosts.state_space import STATE_SPACE
from structured_init.weights import Weights
from structured_init.writer import writing

D, STATES, TOKENS = 8, 4, 6
MAMBA2 = {
    "hidden_size": D, "mamba_n_heads": 4, "mamba_d_head": 4, "mamba_d_state": STATES, "mamba_n_groups": 2,
    "mamba_d_conv": 3, "mamba_expand": 2, "mamba_chunk_size": 4,
}  # fmt: skip
SMALL = {"vocab_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4}
NEMOTRON = {
    "hidden_size": D, "mamba_num_heads": 4, "mamba_head_dim": 4, "ssm_state_size": STATES, "n_groups": 2,
    "conv_kernel": 3, "chunk_size": 4,
}  # fmt: skip
ZAMBA2 = {
    "hidden_size": D, "n_mamba_heads": 4, "mamba_headdim": 4, "mamba_d_state": STATES, "mamba_ngroups": 2,
    "mamba_d_conv": 3, "mamba_expand": 2, "chunk_size": 4,
}  # fmt: skip
OF_MAMBA2 = {"hidden_size": D, "num_heads": 4, "head_dim": 4, "state_size": STATES}
OF_MAMBA2 |= {"n_groups": 2, "conv_kernel": 3, "chunk_size": 4}
ONE = {
    MambaMixer: ("MambaConfig", {"hidden_size": D, "state_size": STATES, "time_step_rank": 2, "use_bias": True}),
    JambaMambaMixer: ("JambaConfig", {"hidden_size": D, "mamba_d_state": STATES, "mamba_dt_rank": 2}),
}
TWO = {
    Mamba2Mixer: ("Mamba2Config", OF_MAMBA2),
    FalconH1Mixer: ("FalconH1Config", {**MAMBA2, "mamba_d_ssm": 16, "ssm_in_multiplier": 0.5, "mamba_rms_norm": True}),
    NemotronHMamba2Mixer: ("NemotronHConfig", NEMOTRON),
    Zamba2MambaMixer: ("Zamba2Config", ZAMBA2),
}
WHOLE = {FalconH1Mixer: "FalconH1Model"}  # the model completes the mixers
SIZES = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": STATES}
SIZES |= {"hidden_size": D, "linear_value_head_dim": 3, "linear_conv_kernel_dim": 3}
DELTA = {
    Qwen3NextGatedDeltaNet: ("Qwen3NextConfig", SIZES),
    Qwen3_5GatedDeltaNet: ("Qwen3_5TextConfig", SIZES),
}


def built(kind, table):
    torch.manual_seed(0)
    name, sizes = table[kind]
    if kind in WHOLE:
        sizes = {**SMALL, **sizes, "ssm_multipliers": [0.5, 0.7, 0.9, 1.1, 1.3], "intermediate_size": 16}
        model = getattr(transformers, WHOLE[kind])(getattr(transformers, name)(**sizes))
        mixer = next(module for module in model.modules() if isinstance(module, kind)).eval()
    else:
        mixer = kind(getattr(transformers, name)(**sizes), layer_idx=0).eval()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.normal_(std=0.5)
    return nn.ModuleDict({"mixer": mixer})


def scanned(values, step, A, B, C):
    """The scan by its definition: h_t = e^(Δ A) h_(t−1) + Δ x B, y = C h; A (H, N) or (H, 1), B and C per head."""
    state, outputs = torch.zeros(*values.shape[2:], B.shape[-1]), []
    for t in range(values.shape[1]):
        decay = (step[0, t, :, None] * A).exp()[:, None]
        state = decay * state + (step[0, t, :, None] * values[0, t])[..., None] * B[0, t][:, None]
        outputs.append((state * C[0, t][:, None]).sum(-1))
    return torch.stack(outputs)[None]


@torch.no_grad()
@pytest.mark.parametrize("kind", list(ONE))
def test_mamba_computes_what_its_site_says(kind):
    model = built(kind, ONE)
    [site], mixer = state_space_sites(model), model["mixer"]
    hidden = torch.randn(1, TOKENS, D)
    values, gate = mixer.in_proj(hidden).chunk(2, -1)
    values = F.silu(mixer.conv1d(values.mT)[..., :TOKENS].mT)
    # b and c by the site's matrices, each normalized where the host does so
    norms = [getattr(mixer, f"{name}_layernorm", nn.Identity()) for name in ("b", "c", "dt")]
    B, C = norms[0](values @ site.B[0])[:, :, None], norms[1](values @ site.C[0])[:, :, None]
    rank = norms[2](values @ mixer.x_proj.weight[:2].T)
    step = F.softplus(rank @ site.dt_weight + site.dt_bias)
    heads = values.shape[-1]
    B, C = (part.expand(-1, -1, heads, -1) for part in (B, C))
    y = scanned(values[..., None], step, -site.A_log.exp(), B, C)[..., 0] + site.D * values
    torch.testing.assert_close(mixer(hidden), mixer.out_proj(y * F.silu(gate)), rtol=1e-4, atol=1e-5)
    read = site.selection(hidden)
    torch.testing.assert_close(read.B[:, :, 0], B[:, :, 0])
    torch.testing.assert_close(read.step, step)


@torch.no_grad()
@pytest.mark.parametrize("kind", list(TWO))
def test_mamba_2_computes_what_its_site_says(kind):
    model = built(kind, TWO)
    [site], mixer = state_space_sites(model), model["mixer"]
    hidden = torch.randn(1, TOKENS, D)
    read = site.selection(hidden)
    factor = getattr(mixer, "ssm_in_multiplier", 1.0)
    inputs = factor * hidden
    raw = torch.cat([inputs @ site.B[group] for group in range(2)], -1)
    if hasattr(mixer, "mup_vector"):
        raw = raw * mixer.mup_vector[..., 32:40]  # behind those of the gate and of x
    taps, bias = site.conv_weight[16:24], mixer.conv1d.bias[16:24]  # channels of B, behind those of x
    padded = F.pad(raw.mT, (2, 0)).unfold(-1, 3, 1)
    B = F.silu((padded * taps[:, None]).sum(-1) + bias[:, None]).mT.unflatten(-1, (2, STATES))
    torch.testing.assert_close(read.B, B)
    B, C = (part.repeat_interleave(2, 2) for part in (read.B, read.C))
    y = scanned(read.values, read.step, -site.A_log.exp(), B, C) + site.D[:, None] * read.values
    gate = mixer.in_proj(inputs)[..., :16] * getattr(mixer, "mup_vector", torch.ones(16))[..., :16]
    torch.testing.assert_close(mixer(hidden), mixer.out_proj(mixer.norm(y.flatten(2), gate)), rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("kind", list(DELTA))
def test_a_gated_delta_rule_computes_what_its_site_says_after_an_initialization(kind):
    model = built(kind, DELTA)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    report = initialize(model, MimeticStateSpace(decay_c=8.0))
    [site], mixer = state_space_sites(model), model["mixer"]
    # An identity convolution and no decay worth a word (A = −e^−8, Δ = 1) leave linear attention with a delta rule
    # between values, all behind SiLU.
    hidden = torch.randn(1, TOKENS, D)
    keys, queries = (F.normalize(F.silu(hidden[0] @ each), dim=-1) for each in (site.B, site.C))
    if kind is Qwen3NextGatedDeltaNet:
        _, _, values, z, b, _ = mixer.fix_query_key_value_ordering(mixer.in_proj_qkvz(hidden), mixer.in_proj_ba(hidden))
    else:
        values = mixer.in_proj_qkv(hidden)[..., 16:].unflatten(-1, (4, 3))
        z, b = mixer.in_proj_z(hidden).unflatten(-1, (4, 3)), mixer.in_proj_b(hidden)
    values, beta, decay = F.silu(values[0]), b[0].sigmoid(), math.exp(-math.exp(-8))
    outputs = torch.zeros(TOKENS, 4, 3)
    for head in range(4):
        state = torch.zeros(STATES, 3)
        for t in range(TOKENS):
            key = keys[head // 2][t]
            state = decay * state
            state = state + beta[t, head] * key[:, None] * (values[t, head] - key @ state)
            outputs[t, head] = queries[head // 2][t] @ state / STATES**0.5
    normalized = mixer.norm(outputs.view(-1, 3), z.reshape(-1, 3)).view(1, TOKENS, -1)
    torch.testing.assert_close(mixer(hidden), mixer.out_proj(normalized), rtol=1e-3, atol=1e-5)
    assert "Δ sets the decay of this delta rule alone" in report.notes["mixer"]
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert not any(part in name for name in changed for part in ("norm", "out_proj", "in_proj_b.", "in_proj_z"))


PARTS = ("A_log", "dt_weight", "dt_bias", "B", "C", "conv_weight", "conv_bias", "D")


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind", [*DELTA, MambaMixer, Mamba2Mixer, JambaMambaMixer])
def test_every_part_is_written_where_it_is_read_and_nowhere_else(kind, part):
    model = built(kind, {**ONE, **TWO, **DELTA})
    if getattr(state_space_sites(model)[0], part) is not None:
        check_round_trip(model, part)


def check_round_trip(model, part):
    """A part is written and read back, fills entries of its own, and leaves all other parts as they were.

    Numbers are multiples of 2⁻²⁰: the bias of a projection is added to that of Δ and taken off without rounding.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((parameter * 2**20).round() / 2**20)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with writing() as writer:
        weights = Weights(model, writer)
        [site] = state_space_sites(weights)
        others = {name: getattr(site, name) for name in PARTS if getattr(site, name) is not None}
        wanted = (torch.randn_like(others[part]) * 2**20).round() / 2**20
        setattr(site.by("test"), part, wanted)
        weights.flush()
    [site] = state_space_sites(model)
    for name, value in others.items():
        assert torch.equal(getattr(site, name), wanted if name == part else value)
    changed = sum(int((tensor != before[name]).sum()) for name, tensor in model.state_dict().items())
    assert changed == wanted.numel()


def test_a_delta_rule_has_no_skip_and_is_no_layer_of_mamba_ssm():
    model = built(Qwen3NextGatedDeltaNet, DELTA)
    [site] = state_space_sites(model)
    assert site.D is None
    with pytest.raises(StructuredInitError, match=r"'mixer' has no D$"):
        site.D = torch.ones(4)
    report = initialize(model, MambaReference())
    assert report.skipped == {"mixer": "a delta rule is no layer of mamba-ssm"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"B": 40, "C": 32}, "B change C, and should change B"),  # each in the other's place
        ({"C": 16}, "C change values, and should change C"),
        ({"dt": 0}, "dt_weight change nothing, and should change step"),  # rows of the gate
    ],
)
def test_a_layout_whose_blocks_are_not_what_its_select_reads_is_refused(given, said, monkeypatch):
    model = built(Mamba2Mixer, TWO)
    layout = state_space_sites(model)[0].layout
    wrong = {name: dataclasses.replace(getattr(layout, name), start=start) for name, start in given.items()}
    described = dataclasses.replace(layout, **wrong)
    known = lambda module: (lambda _: described) if isinstance(module, Mamba2Mixer) else None  # noqa: E731
    monkeypatch.setattr(STATE_SPACE, "find", known)
    with pytest.raises(StructuredInitError, match=rf"is not what its select reads: other weights as {said}"):
        initialize(model, MimeticStateSpace())


def test_blocks_that_a_weight_does_not_hold_or_that_meet_are_refused():
    layout = state_space_sites(built(Mamba2Mixer, TWO))[0].layout  # in_proj holds 52 rows of width 8
    with pytest.raises(StructuredInitError, match=r"^StateSpaceLayout: C takes entries 360 to 423 of "):
        dataclasses.replace(layout, C=dataclasses.replace(layout.C, start=45))
    with pytest.raises(StructuredInitError, match=r"^StateSpaceLayout: B and C have entries of one weight in common$"):
        dataclasses.replace(layout, C=dataclasses.replace(layout.C, start=layout.B.start + 7))


def test_a_bias_of_the_projection_that_gives_the_steps_counts():
    config, sizes = TWO[Mamba2Mixer]
    model = built(Mamba2Mixer, {Mamba2Mixer: (config, sizes | {"use_bias": True})})
    (site,) = state_space_sites(model)
    torch.testing.assert_close(site.step, site.layout.select(torch.zeros(1, 1, D)).step[0, 0].double())
    initialize(model, MimeticStateSpace())
    torch.testing.assert_close(site.layout.select(torch.randn(1, 5, D)).step, torch.full((1, 5, site.num_heads), 1.0))


def test_a_class_of_one_s_own_is_described_in_one_function():
    class Own(MambaMixer):
        pass

    assert len(state_space_sites(nn.ModuleDict({"m": Own(transformers.MambaConfig(hidden_size=4), 0)}))) == 1

    class Fresh(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = MambaMixer(transformers.MambaConfig(hidden_size=4), 0)

    @register_state_space(Fresh)
    def fresh(module) -> StateSpaceLayout:
        return STATE_SPACE.find(module.inner)(module.inner)

    assert [site.name for site in state_space_sites(nn.ModuleDict({"m": Fresh()}))] == ["m", "m.inner"]


# mamba-ssm, where it is installed


OF_MAMBA_SSM = [
    ("Mamba", {}),
    ("Mamba", {"d_state": 3, "d_conv": 2, "dt_rank": 3, "bias": True}),
    ("Mamba2", {"d_state": 5, "headdim": 4}),
    ("Mamba2", {"d_state": 5, "headdim": 4, "ngroups": 2, "bias": True}),
    ("Mamba2", {"d_state": 5, "headdim": 4, "d_ssm": 8, "rmsnorm": False}),
    ("Mamba2", {"d_state": 3, "headdim": 4, "D_has_hdim": True}),
]


@pytest.mark.parametrize(("kind", "options"), OF_MAMBA_SSM)
def test_what_is_written_into_mamba_ssm_is_read_back(mamba_ssm, kind, options):
    torch.manual_seed(0)
    model = nn.ModuleDict({"mixer": getattr(mamba_ssm, kind)(d_model=D, **options)})
    for part in PARTS:
        check_round_trip(model, part)


def test_both_hosts_keep_the_same_matrices_under_the_same_names(mamba_ssm):
    """The weights of one host, loaded into the other, read the same."""
    for kind, table, options in (
        (MambaMixer, ONE, {"dt_rank": 2, "d_state": STATES, "bias": True}),
        (Mamba2Mixer, TWO, {"headdim": 4, "ngroups": 2, "d_state": STATES, "d_conv": 3}),
    ):
        ours = built(kind, table)
        theirs = nn.ModuleDict({"mixer": getattr(mamba_ssm, kind.__name__.removesuffix("Mixer"))(d_model=D, **options)})
        theirs.load_state_dict(ours.state_dict())
        (one,), (two,) = state_space_sites(ours), state_space_sites(theirs)
        assert repr(one) == repr(two)
        assert all(torch.equal(getattr(one, part), getattr(two, part)) for part in PARTS)


def test_beside_a_gated_mlp_the_state_space_part_of_mamba2_stands_last(mamba_ssm):
    module = mamba_ssm.Mamba2(d_model=8, headdim=4, d_ssm=8, d_state=5, ngroups=2)  # 16 − 8 = 8 channels of an MLP
    with torch.no_grad():
        module.in_proj.weight.copy_(torch.arange(float(len(module.in_proj.weight)))[:, None].expand(-1, 8))
    (site,) = state_space_sites(nn.ModuleDict({"m": module}))
    # [MLP 8 | MLP 8 | z 8 | x 8 | B 2·5 | C 2·5 | Δ 2], rows counted from 0.
    assert site.B[:, 0].flatten().tolist() == list(range(32, 42))
    assert site.C[:, 0].flatten().tolist() == list(range(42, 52))
    assert site.dt_weight[0].tolist() == [52, 53]

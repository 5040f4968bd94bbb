"""State-space sites: one convention for Mamba and Mamba-2, whatever the host."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import Mamba2Config, MambaConfig
from transformers.models.mamba.modeling_mamba import MambaMixer
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

from structured_init import (
    StateSpaceLayout,
    StructuredInitError,
    register_state_space,
    state_space_sites,
)
from structured_init.hosts.state_space import STATE_SPACE
from structured_init.overlay import Weights
from structured_init.writer import Writer

PARTS = ("A_log", "dt_weight", "dt_bias", "B", "C", "conv_weight", "conv_bias", "D")
SIZES = settings(max_examples=15, deadline=None, derandomize=True)


def mamba(width=6, states=4, rank=2, taps=3, bias=True):
    config = MambaConfig(
        hidden_size=width, state_size=states, time_step_rank=rank, conv_kernel=taps, num_hidden_layers=1, use_bias=bias
    )
    return MambaMixer(config, layer_idx=0)


def mamba2(heads=4, head_dim=3, groups=2, states=4, taps=3, bias=True):
    config = Mamba2Config(
        hidden_size=heads * head_dim,
        expand=1,
        num_heads=heads,
        head_dim=head_dim,
        n_groups=groups,
        state_size=states,
        conv_kernel=taps,
        num_hidden_layers=1,
        use_bias=bias,
        chunk_size=4,
    )
    return Mamba2Mixer(config, layer_idx=0)


def check_round_trip(module):
    """Every part is written and read back, fills entries of its own, and leaves all other parts as they were."""
    model = nn.ModuleDict({"mixer": module})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    for part in PARTS:
        (site,) = state_space_sites(model)
        before = {name: getattr(site, name) for name in PARTS}
        wanted = torch.randn_like(before[part])
        entries = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with Writer() as writer:
            weights = Weights(model, writer)
            (written,) = state_space_sites(weights)
            setattr(written.by("test"), part, wanted)
            weights.flush()
        for name in PARTS:
            assert torch.equal(getattr(site, name), wanted if name == part else before[name]), (part, name)
        changed = sum((tensor != entries[name]).sum().item() for name, tensor in model.state_dict().items())
        assert changed == wanted.numel() > 0


@SIZES
@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_what_is_written_into_transformers_mamba_is_read_back(width, states, rank, taps, bias):
    torch.manual_seed(0)
    check_round_trip(mamba(width, states, rank, taps, bias))


@SIZES
@given(st.integers(1, 3), st.integers(1, 2), st.integers(1, 3), st.integers(1, 5), st.booleans())
def test_what_is_written_into_transformers_mamba2_is_read_back(per_group, groups, head_dim, states, bias):
    torch.manual_seed(0)
    check_round_trip(mamba2(per_group * groups, head_dim, groups, states, bias=bias))


@pytest.mark.parametrize("options", [{}, {"d_state": 3, "d_conv": 2, "dt_rank": 3, "bias": True}])
def test_what_is_written_into_mamba_ssm_s_mamba_is_read_back(mamba_ssm, options):
    check_round_trip(mamba_ssm.Mamba(d_model=6, **options))


@pytest.mark.parametrize(
    "options", [{}, {"ngroups": 2, "bias": True}, {"d_ssm": 8, "rmsnorm": False}, {"D_has_hdim": True, "d_state": 3}]
)
def test_what_is_written_into_mamba_ssm_s_mamba2_is_read_back(mamba_ssm, options):
    check_round_trip(mamba_ssm.Mamba2(d_model=8, headdim=4, **{"d_state": 5, **options}))


def test_both_hosts_keep_the_same_matrices_under_the_same_names(mamba_ssm):
    """The weights of one host, loaded into the other, read the same."""
    pairs = [
        (mamba(bias=False), mamba_ssm.Mamba(d_model=6, d_state=4, dt_rank=2, d_conv=3)),
        (
            mamba2(bias=False),
            mamba_ssm.Mamba2(d_model=12, expand=1, headdim=3, ngroups=2, d_state=4, d_conv=3),
        ),
    ]
    for transformers, original in pairs:
        original.load_state_dict(transformers.state_dict())
        (ours,), (theirs,) = (state_space_sites(nn.ModuleDict({"m": module})) for module in (transformers, original))
        assert repr(ours) == repr(theirs)
        for part in PARTS:
            assert torch.equal(getattr(ours, part), getattr(theirs, part))


def test_beside_a_gated_mlp_the_state_space_part_of_mamba2_stands_last(mamba_ssm):
    module = mamba_ssm.Mamba2(d_model=8, headdim=4, d_ssm=8, d_state=5, ngroups=2)  # 16 − 8 = 8 channels of an MLP
    with torch.no_grad():
        module.in_proj.weight.copy_(torch.arange(float(len(module.in_proj.weight)))[:, None].expand(-1, 8))
    (site,) = state_space_sites(nn.ModuleDict({"m": module}))
    # [MLP 8 | MLP 8 | z 8 | x 8 | B 2·5 | C 2·5 | Δ 2], rows counted from 0.
    assert site.B[:, 0].flatten().tolist() == list(range(32, 42))
    assert site.C[:, 0].flatten().tolist() == list(range(42, 52))
    assert site.dt_weight[0].tolist() == [52, 53]


def recurrence(x, step, A, B, C, D):
    """y_t = C_t h_t + D x_t of one channel, in a loop; x and step (L,), A (N,), B and C (L, N)."""
    state, outputs = torch.zeros_like(A), []
    for token in range(len(x)):
        state = (step[token] * A).exp() * state + step[token] * B[token] * x[token]
        outputs.append(C[token] @ state + D * x[token])
    return torch.stack(outputs)


def test_the_convention_is_that_of_the_layer_s_own_output_in_mamba():
    torch.manual_seed(0)
    module = mamba(bias=False).double().eval()
    (site,) = state_space_sites(nn.ModuleDict({"m": module}))
    hidden = torch.randn(7, 6).double()
    x, gate = (hidden @ module.in_proj.weight.mT).chunk(2, dim=-1)
    padded = torch.cat([torch.zeros(2, 12).double(), x])
    x = F.silu(sum(padded[tap : tap + 7] * site.conv_weight[:, tap] for tap in range(3)) + site.conv_bias)
    step = F.softplus(x @ module.x_proj.weight[:2].mT @ site.dt_weight + site.dt_bias)
    A, B, C = -site.A_log.exp(), x @ site.B[0], x @ site.C[0]
    y = [recurrence(x[:, i], step[:, i], A[i], B, C, site.D[i]) for i in range(site.num_heads)]
    expected = (torch.stack(y, dim=1) * F.silu(gate)) @ module.out_proj.weight.mT
    torch.testing.assert_close(module(hidden[None])[0], expected, rtol=1e-5, atol=1e-7)


def test_the_convention_is_that_of_the_layer_s_own_output_in_mamba2():
    torch.manual_seed(0)
    module = mamba2(bias=False).double().eval()
    (site,) = state_space_sites(nn.ModuleDict({"m": module}))
    hidden = torch.randn(7, 12).double()
    gate, x = (hidden @ module.in_proj.weight[:24].mT).chunk(2, dim=-1)
    mixed = torch.cat([x, *(hidden @ w for w in site.B), *(hidden @ w for w in site.C)], dim=-1)
    padded = torch.cat([torch.zeros(2, mixed.shape[1]).double(), mixed])
    mixed = F.silu(sum(padded[tap : tap + 7] * site.conv_weight[:, tap] for tap in range(3)) + site.conv_bias)
    x, B, C = (
        mixed[:, :12].unflatten(1, (4, 3)),
        mixed[:, 12:20].unflatten(1, (2, 4)),
        mixed[:, 20:].unflatten(1, (2, 4)),
    )
    step, A = F.softplus(hidden @ site.dt_weight + site.dt_bias), -site.A_log.exp()
    y = [
        recurrence(x[:, h, p], step[:, h], A[h].expand(4), B[:, h // 2], C[:, h // 2], site.D[h])
        for h in range(4)
        for p in range(3)
    ]
    expected = module.norm(torch.stack(y, dim=1), gate) @ module.out_proj.weight.mT
    torch.testing.assert_close(module(hidden[None])[0], expected, rtol=1e-5, atol=1e-6)


def test_a_wrong_shape_is_refused_by_name():
    (site,) = state_space_sites(weights := Weights(nn.ModuleDict({"m": mamba()})))
    with pytest.raises(StructuredInitError, match=r"'m' takes dt_bias of shape \(12,\), got \(5,\)"):
        site.dt_bias = torch.zeros(5)
    assert not weights.updates


def test_a_class_of_one_s_own_is_described_in_one_function():
    class Own(MambaMixer):
        pass

    assert len(state_space_sites(nn.ModuleDict({"m": Own(MambaConfig(hidden_size=4, num_hidden_layers=1), 0)}))) == 1

    class Fresh(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mamba()

    @register_state_space(Fresh)
    def fresh(module) -> StateSpaceLayout:
        return STATE_SPACE.find(module.inner)(module.inner)

    assert [site.name for site in state_space_sites(nn.ModuleDict({"m": Fresh()}))] == ["m", "m.inner"]

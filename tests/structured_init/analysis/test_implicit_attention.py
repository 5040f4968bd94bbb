"""Implicit attention: the matrix that a scan applies, against the layers' own outputs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hosts import mamba, mamba2
from transformers.models.mamba.modeling_mamba import MambaMixer

from structured_init import MimeticStateSpace, initialize
from structured_init.analysis import capture_attention, implicit_attention, implicit_maps, summarize


def output(mixer, hidden, matrices, scanned):
    """What the layer makes of its matrices: with the skip, the gate and, in Mamba-2, a norm."""
    y = torch.einsum("bhij,bjhp->bihp", matrices, scanned.values) + scanned.values * mixer.D[:, None]
    if isinstance(mixer, MambaMixer):
        return mixer.out_proj(y.flatten(2) * F.silu(F.linear(hidden, mixer.in_proj.weight[24:])))
    gate = F.linear(hidden, mixer.in_proj.weight[:24])
    return mixer.out_proj(mixer.norm(y.flatten(2), gate).double())


@pytest.mark.parametrize("start", [None, MimeticStateSpace()])
@pytest.mark.parametrize(("build", "heads"), [(mamba, 24), (mamba2, 4)])
def test_the_matrices_times_the_inputs_are_the_layer_s_output(build, heads, start):
    model = build(num_hidden_layers=2).double().eval()
    if start is not None:
        initialize(model, start)
    mixer = model.backbone.layers[1].mixer
    hidden = torch.randn(2, 9, 12, dtype=torch.float64)
    matrices, scanned = implicit_attention(mixer, hidden)
    assert matrices.shape == (2, heads, 9, 9)
    assert torch.equal(matrices, matrices.tril())
    torch.testing.assert_close(output(mixer, hidden, matrices, scanned), mixer(hidden), rtol=1e-5, atol=1e-6)


def test_padding_on_the_left_takes_no_part():
    mixer = mamba2().double().eval().backbone.layers[0].mixer
    hidden, mask = torch.randn(1, 7, 12, dtype=torch.float64), torch.tensor([[0, 0, 1, 1, 1, 1, 1]])
    matrices, scanned = implicit_attention(mixer, hidden, mask)
    assert not matrices[..., :2].any()
    got = output(mixer, hidden * mask[..., None], matrices, scanned)
    torch.testing.assert_close(got, mixer(hidden, attention_mask=mask), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("build", "maps"), [(mamba, 8), (mamba2, 4)])
def test_state_space_layers_are_captured_like_any_attention(build, maps):
    model, tokens = build(num_hidden_layers=2).double().eval(), torch.arange(14).view(2, 7) % 11
    captured = capture_attention(model, tokens)
    assert list(captured) == ["backbone.layers.0.mixer", "backbone.layers.1.mixer"]
    for layer in captured.values():
        assert layer.shape == (2, maps, 7, 7)
        torch.testing.assert_close(layer.sum(-1), torch.ones(2, maps, 7))
        assert torch.equal(layer, layer.tril())
        assert all(torch.tensor(values).isfinite().all() for values in summarize(layer).values())


def test_a_map_of_mamba_is_the_mean_over_its_channels():
    mixer = mamba().double().eval().backbone.layers[0].mixer
    hidden = torch.randn(1, 6, 12, dtype=torch.float64)
    matrices, _ = implicit_attention(mixer, hidden)
    expected = matrices.unflatten(1, (3, 8)).mean(2).abs()
    expected = expected / expected.sum(-1, keepdim=True)
    torch.testing.assert_close(implicit_maps(mixer, hidden, groups=3), expected)

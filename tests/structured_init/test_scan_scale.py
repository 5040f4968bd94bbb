"""The scan without decay sums every token: what it grows to is measured, said, and by default kept within bounds."""

from __future__ import annotations

import hosts
import pytest
import torch

from structured_init import MimeticStateSpace, initialize, state_space_sites
from structured_init.analysis import implicit_attention
from structured_init.ssm.mimetic import scan_scale

NAME = "backbone.layers.0.mixer"
LATE = "scan output at token 256 (rms)"


def mamba(width=128, layers=2):
    return hosts.mamba(vocab_size=50, hidden_size=width, num_hidden_layers=layers, state_size=16).eval()


def mamba2(width=64, heads=4, states=16):
    """By default the network of the recall tables."""
    sizes = {"num_heads": heads, "head_dim": 2 * width // heads, "n_groups": 1, "state_size": states, "chunk_size": 32}
    return hosts.mamba2(vocab_size=50, hidden_size=width, num_hidden_layers=2, **sizes).eval()


def outputs(model, tokens):
    """Root mean square of every mixer's output at the last of some random tokens, by the host's own forward pass."""
    found = []
    hooks = [
        site.module.register_forward_hook(lambda module, args, output: found.append(output[0, -1]))
        for site in state_space_sites(model)
    ]
    ids = torch.randint(50, (1, tokens), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = model(ids).logits
    for hook in hooks:
        hook.remove()
    return [each.float().square().mean().sqrt().item() for each in found], logits


def test_mamba_s_layers_give_what_they_gave_before_and_not_hundreds_of_times_that():
    """By the host's own forward pass, which is not what the scale is measured with."""
    host, model, free = mamba(), mamba(), mamba()
    initialize(model, MimeticStateSpace())
    initialize(free, MimeticStateSpace(scan_scale="paper"))
    for before, after, unbounded in zip(*(outputs(each, 256)[0] for each in (host, model, free)), strict=True):
        assert after < 16 * max(before, 0.25)
        assert unbounded > 10 * after


def test_logits_are_finite_in_half_precision_at_transformers_scales():
    model, free = mamba(768, 2), mamba(768, 2)
    initialize(free, MimeticStateSpace(scan_scale="paper"))
    assert not outputs(free.half(), 128)[1].isfinite().all()
    report = initialize(model, MimeticStateSpace())
    assert outputs(model.half(), 128)[1].isfinite().all()
    assert "scan_scale='paper' leaves them" in report.notes[NAME]
    assert report.warnings == []


def test_the_paper_s_scale_is_there_by_name_and_warned_of():
    report = initialize(mamba(), MimeticStateSpace(scan_scale="paper"))
    first, *_ = report.warnings
    assert first.startswith(f"'{NAME}': the scan's output grows to ")
    assert "half precision may overflow; scan_scale='bounded' prevents it" in first
    assert len(report.warnings) == 2
    assert NAME not in report.notes
    before, after = report.measures[NAME][LATE]
    assert after > 100 > before


def test_both_are_made_smaller_alike_and_the_rest_is_as_without():
    bounded, free = mamba(), mamba()
    initialize(bounded, MimeticStateSpace())
    initialize(free, MimeticStateSpace(scan_scale="paper"))
    for one, other in zip(state_space_sites(bounded), state_space_sites(free), strict=True):
        factor = (one.B.norm() / other.B.norm()).item()
        assert 0 < factor < 0.5
        torch.testing.assert_close(one.B, factor * other.B)
        torch.testing.assert_close(one.C, factor * other.C)
        for part in ("A_log", "dt_weight", "dt_bias", "conv_weight", "conv_bias", "D"):
            assert torch.equal(getattr(one, part), getattr(other, part))


def test_the_recall_network_of_mamba_2_keeps_every_bit():
    bounded, free = mamba2(), mamba2()
    report = initialize(bounded, MimeticStateSpace())
    initialize(free, MimeticStateSpace(scan_scale="paper"))
    for one, other in zip(bounded.state_dict().values(), free.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    assert report.notes == {}
    assert report.measures[NAME][LATE][1] < 100


@pytest.mark.parametrize("build", [mamba, mamba2])
def test_the_measured_scale_is_that_of_the_layer_s_own_matrix(build):
    """y = M x for the matrix that the layer's weights give, on the same tokens."""
    model = build(32) if build is mamba else build()
    initialize(model, MimeticStateSpace())
    site = state_space_sites(model)[0]
    measured = scan_scale(site)
    tokens = torch.randn(1, 256, site.layout.embed_dim, generator=torch.Generator().manual_seed(0))
    matrix, selection = implicit_attention(site.module, tokens)
    output = torch.einsum("bhij,bjhp->bihp", matrix, selection.values)
    for value, part in ((measured.early, output[:, 48:64]), (measured.late, output[:, 240:256])):
        assert value == pytest.approx(part.square().mean().sqrt().item(), rel=1e-3)
    assert measured.input == pytest.approx(selection.values.square().mean().sqrt().item(), rel=1e-5)

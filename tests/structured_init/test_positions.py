"""Positions: each kind against an independent formula or library."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers import build_sincos2d_pos_embed

from structured_init import Mimetic, Positions, StructuredInitError, initialize
from structured_init.attention.positions import axis_code, row_and_column_codes, sincos_2d

EVERYWHERE = settings(max_examples=30, deadline=None, derandomize=True)
GRIDS = st.tuples(st.integers(1, 9), st.integers(1, 9))


@EVERYWHERE
@given(GRIDS, st.integers(1, 12), st.sampled_from([10000.0, 100.0]))
def test_sincos_is_timms(grid, bands, temperature):
    expected = build_sincos2d_pos_embed(list(grid), 4 * bands, temperature=temperature)
    torch.testing.assert_close(sincos_2d(grid, 4 * bands, temperature=temperature).float(), expected, rtol=0, atol=1e-5)


@EVERYWHERE
@given(GRIDS, st.integers(2, 12), st.sampled_from([10000.0, 100.0]))
def test_simplevit_is_the_papers_formula_entry_by_entry(grid, bands, temperature):
    """2205.01580, appendix: ω_i = T^(−i/(D/4 − 1)); columns sin x, cos x, sin y, cos y."""
    found = sincos_2d(grid, 4 * bands, form="simplevit", temperature=temperature)
    for row in range(grid[0]):
        for column in range(grid[1]):
            for i in range(bands):
                omega = 1 / temperature ** (i / (bands - 1))
                expected = (
                    math.sin(column * omega),
                    math.cos(column * omega),
                    math.sin(row * omega),
                    math.cos(row * omega),
                )
                entries = found[row * grid[1] + column, [i, bands + i, 2 * bands + i, 3 * bands + i]]
                assert entries.tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("form", ["timm", "simplevit"])
def test_gain_multiplies_sincos(tiny_vit, form):
    once, twice = tiny_vit(), tiny_vit()
    initialize(once, Positions(form=form))
    initialize(twice, Positions(form=form, gain=2.0))
    torch.testing.assert_close(twice.pos_embed[:, 1:], 2 * once.pos_embed[:, 1:])


@pytest.mark.parametrize(("side", "warned"), [(8, False), (2, True)])
def test_positions_alone_are_the_control_of_mimetic(tiny_vit, side, warned):
    control, mimetic = tiny_vit(img_size=side), tiny_vit(img_size=side)
    reports = initialize(control, Positions()), initialize(mimetic, Mimetic())
    assert torch.equal(control.pos_embed, mimetic.pos_embed)
    assert [any("a single patch: positions say" in each for each in report.warnings) for report in reports] == [
        warned,
        warned,
    ]


def test_gaussian_has_the_asked_standard_deviation(tiny_vit):
    model = tiny_vit(img_size=64, embed_dim=32)  # 1,024 tokens × 32: the standard error of the std is 0.4 %
    initialize(model, Positions("gaussian", gain=18.0))
    grid = model.pos_embed[:, 1:]
    assert grid.std().item() == pytest.approx(0.36, rel=0.02)
    assert grid.mean().item() == pytest.approx(0, abs=0.01)
    assert grid.abs().max().item() > 3 * 0.36  # not truncated


@pytest.mark.parametrize(("kappa", "gain"), [(None, 1.0), (0.5, 0.7), (2.0, 1.0)])
@pytest.mark.parametrize(("grid", "width"), [((8, 8), 192), ((3, 5), 6), ((1, 7), 16)])
def test_codes_have_the_asked_root_mean_square_and_no_constant(grid, width, kappa, gain):
    codes = row_and_column_codes(grid, width, kappa=kappa, gain=gain, generator=torch.Generator().manual_seed(0))
    assert codes.square().mean().sqrt().item() == pytest.approx(gain, rel=1e-12)
    torch.testing.assert_close(codes.mean(0), torch.zeros(width, dtype=torch.float64))


def cosine(codes, rows):
    grid = torch.nn.functional.normalize(codes, dim=-1).view(rows, -1, codes.shape[-1])
    right = (grid[:, :-1] * grid[:, 1:]).sum(-1).mean().item()
    diagonal = (grid[:-1, :-1] * grid[1:, 1:]).sum(-1).mean().item()
    return right, diagonal


def test_smooth_codes_keep_neighbours_as_similar_as_the_design_says():
    """κ = 2, in the middle of ViT-T/2's 16×16 grid: 0.77 to the next column, 0.54 to the diagonal neighbour."""
    codes = row_and_column_codes((16, 16), 192, kappa=2.0, gain=1.0, generator=torch.Generator().manual_seed(0))
    middle = codes.view(16, 16, 192)[8:10, 8:10].reshape(4, 192)
    assert cosine(middle, 2) == pytest.approx((0.77, 0.54), abs=0.01)


def test_unrelated_codes_share_only_what_one_coordinate_shares():
    """κ → ∞: centred one-hot codes of each axis, ⟨a, b⟩ = δ_ab − 1/G, whose cosine is c = −1/(G − 1).

    The next column shares the row: (1 + c)/2. The diagonal neighbour shares nothing: c.
    """
    size = 8
    codes = row_and_column_codes((size, size), 192, kappa=None, gain=1.0, generator=torch.Generator().manual_seed(0))
    other = -1 / (size - 1)
    assert cosine(codes, size) == pytest.approx(((1 + other) / 2, other), abs=1e-9)


@EVERYWHERE
@given(st.integers(2, 20), st.one_of(st.none(), st.floats(0.1, 50)))
def test_an_axis_code_is_the_scaled_cosine_transform_of_scipy(size, kappa):
    from scipy.fft import dct

    amplitudes = np.ones(size) if kappa is None else 1 / (1 + np.arange(size) / kappa)
    expected = dct(np.eye(size), norm="ortho", axis=1) * amplitudes
    np.testing.assert_allclose(axis_code(size, kappa).numpy(), expected[:, 1:], atol=1e-12)


def test_codes_of_two_seeds_differ_by_a_rotation_only():
    first, second = (
        row_and_column_codes((4, 5), 16, kappa=2.0, gain=1.0, generator=torch.Generator().manual_seed(seed))
        for seed in (0, 1)
    )
    assert not torch.allclose(first, second, atol=0.1)
    torch.testing.assert_close(first @ first.mT, second @ second.mT)


@pytest.mark.parametrize(("trainable", "start", "end"), [(None, 0, 0), (None, 1, 1), (False, 1, 0), (True, 0, 1)])
def test_trainable_freezes_thaws_or_leaves(tiny_vit, trainable, start, end):
    model = tiny_vit()
    model.pos_embed.requires_grad_(bool(start))
    report = initialize(model, Positions(trainable=trainable))
    assert model.pos_embed.requires_grad == bool(end)
    assert ("frozen: pos_embed" in str(report)) == (not end)
    assert all(parameter.requires_grad for name, parameter in model.named_parameters() if name != "pos_embed")


def test_codes_that_do_not_fit_the_width_are_one_line(tiny_vit):
    with pytest.raises(StructuredInitError) as caught:
        initialize(tiny_vit(img_size=24), Positions("codes"))  # 12×12 tokens, 22 codes, width 16
    assert "12×12 grid need 1 ≤ rows+columns−2 ≤ embed_dim, got 22 and 16" in str(caught.value)

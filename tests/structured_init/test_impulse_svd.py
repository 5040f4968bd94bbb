"""The svd solver against a transcription of the described procedure with D × D matrices, and its published numbers.

Letters: H heads, N tokens, D embed_dim, k head_dim. Source: 2505.19985, as its code is described.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from structured_init.impulse.impulse import draw_offsets
from structured_init.impulse.solver import Basis, impulse_maps, layer_norm
from structured_init.impulse.svd import closed_form, noisy_target


def transcription(tokens, targets, head_dim):
    """Steps 3 to 6, literally: G, its truncated inverse, A, its factors, both normalized and times 7."""
    left, singular, right = np.linalg.svd(tokens.T @ tokens)
    inverse = np.zeros_like(singular)
    inverse[:head_dim] = 1 / singular[:head_dim]
    pseudo_inverse = right.T @ np.diag(inverse) @ left.T @ tokens.T
    for target in targets:
        u, s, v = np.linalg.svd(pseudo_inverse @ target @ pseudo_inverse.T)
        query, key = u[:, :head_dim] * s[:head_dim] ** 0.5, v[:head_dim].T * s[:head_dim] ** 0.5
        yield 7 * query / np.linalg.norm(query), 7 * key / np.linalg.norm(key)


def problem(grid, width, heads, seed=0):
    generator = torch.Generator().manual_seed(seed)
    positions = 0.36 * torch.randn(grid[0] * grid[1], width, dtype=torch.float64, generator=generator)
    offsets = draw_offsets("fixed", heads, 3, generator=generator)
    targets = noisy_target(impulse_maps(offsets, grid, border="zero"), 3.0, generator=generator)
    return layer_norm(positions), targets, offsets


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    st.tuples(st.integers(3, 6), st.integers(3, 6)), st.integers(8, 24), st.integers(1, 4), st.integers(2, 7), st.data()
)
def test_the_factors_are_those_of_the_transcription_up_to_the_sign_of_each_column(grid, width, heads, head_dim, data):
    tokens, targets, _ = problem(grid, width, heads, data.draw(st.integers(0, 99)))
    query, key = closed_form(Basis.of(tokens), targets, head_dim, norm=7.0)
    for head, (expected_query, expected_key) in enumerate(transcription(tokens.numpy(), targets.numpy(), head_dim)):
        signs = np.sign((query[head].numpy() * expected_query).sum(0))
        np.testing.assert_allclose(query[head], expected_query * signs, atol=1e-6)
        np.testing.assert_allclose(key[head], expected_key * signs, atol=1e-6)


# §1.4, an independent re-implementation: mass .860, .976, .997 on positions only, argmax accuracy at least .994.
@pytest.mark.parametrize(
    ("width", "heads", "mass"), [(192, 3, 0.860), (384, 6, 0.976), pytest.param(768, 12, 0.997, marks=pytest.mark.slow)]
)
def test_published_mass_and_accuracy_are_reached(width, heads, mass):
    grid, head_dim = (14, 14), 64
    tokens, targets, offsets = problem(grid, width, heads)
    query, key = closed_form(Basis.of(tokens), targets, head_dim, norm=7.0)
    found, hits = [], []
    for head, (down, right) in enumerate(offsets.tolist()):
        attention = (tokens @ query[head] @ key[head].mT @ tokens.mT / head_dim**0.5).softmax(-1)
        for y in range(max(0, -down), min(14, 14 - down)):
            for x in range(max(0, -right), min(14, 14 - right)):
                row, target = attention[y * 14 + x], (y + down) * 14 + x + right
                found.append(row[target].item())
                hits.append(row.argmax().item() == target)
    assert np.mean(found) == pytest.approx(mass, rel=0.02)
    assert np.mean(hits) == pytest.approx(0.997, abs=0.005)


def test_the_noise_stands_beside_the_impulse_and_never_on_it():
    impulses = impulse_maps(torch.tensor([[-1, 0], [0, 0]]), (12, 12), border="zero")
    target = noisy_target(impulses, 3.0, generator=torch.Generator().manual_seed(0))
    assert (target[impulses == 1] == 1000).all()
    beside = target[impulses == 0]
    assert beside.std().item() == pytest.approx(1.8, rel=0.02)  # 3 · 0.6; the cut at ±2 is at 3.3 deviations
    assert beside.abs().max() <= 6
    assert target[0, 0].abs().max() > 0  # a query whose target lies outside gets noise alone


def test_each_head_has_the_asked_frobenius_norm():
    tokens, targets, _ = problem((4, 5), 16, 3)
    for weight in closed_form(Basis.of(tokens), targets, 6, norm=2.5):
        torch.testing.assert_close(torch.linalg.matrix_norm(weight), torch.full((3,), 2.5, dtype=torch.float64))


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(8, 24), st.integers(1, 3), st.integers(1, 4), st.integers(2, 7), st.integers(0, 99))
def test_heads_that_share_a_key_have_the_products_of_heads_with_keys_of_their_own(width, keys, group, head_dim, seed):
    tokens, targets, _ = problem((4, 5), width, keys * group, seed)
    query, key = closed_form(Basis.of(tokens), targets, head_dim, norm=7.0, group=group)
    assert key.shape == (keys, width, head_dim)
    torch.testing.assert_close(torch.linalg.matrix_norm(key), torch.full((keys,), 7.0, dtype=torch.float64))
    for head, (own_query, own_key) in enumerate(transcription(tokens.numpy(), targets.numpy(), head_dim)):
        np.testing.assert_allclose(query[head] @ key[head // group].mT, own_query @ own_key.T, atol=1e-6)

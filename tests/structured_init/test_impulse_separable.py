"""The separable solver: its logits are c times row shift plus column shift, as far as positions and heads allow.

Letters: N tokens of a grid (Gy, Gx), D embed_dim, k head_dim, G heads that share a key.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from structured_init import Positions, attention_sites, initialize
from structured_init.attention.positions import row_and_column_codes, sincos_2d
from structured_init.impulse import Impulse
from structured_init.impulse.separable import CUTOFF, expressed, separable
from structured_init.impulse.solver import Basis, layer_norm

GRIDS = st.tuples(st.integers(2, 7), st.integers(2, 7))
OFFSETS = st.tuples(st.integers(-2, 2), st.integers(-2, 2))
EVERYWHERE = settings(max_examples=30, deadline=None, derandomize=True)


def centred_axis(size, offset):
    """A clamped shift entry by entry, then without the mean of its rows and columns."""
    shift = np.zeros((size, size))
    for i in range(size):
        shift[i, min(max(i + offset, 0), size - 1)] += 1
    centring = np.eye(size) - 1 / size
    return centring @ shift @ centring


def target(grid, offset):
    ones = [np.ones((size, size)) for size in grid]
    return np.kron(centred_axis(grid[0], offset[0]), ones[1]) + np.kron(ones[0], centred_axis(grid[1], offset[1]))


def tokens_of(grid, width, kappa, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return layer_norm(row_and_column_codes(grid, width, kappa=kappa, gain=1.0, generator=generator))


def product(tokens, target):
    """M = P⁺ T P⁺ᵀ with numpy's pseudo-inverse at the same relative cut-off."""
    inverse = np.linalg.pinv(tokens.numpy(), rcond=CUTOFF)
    return inverse @ target @ inverse.T


def shifted(tokens, offsets, grid, head_dim):
    """Queries and key in full, and what was found."""
    basis = Basis.of(tokens).cut(cutoff=CUTOFF)
    found = separable(basis, offsets, grid, head_dim, border="clamp")
    return basis.right @ found.query, basis.right @ found.key, found


@EVERYWHERE
@given(GRIDS, OFFSETS, st.integers(1, 20), st.sampled_from([None, 2.0]), st.integers(0, 99))
def test_queries_times_keys_are_the_best_approximation_of_the_product(grid, offset, head_dim, kappa, seed):
    tokens = tokens_of(grid, 24, kappa, seed)
    (query,), key, found = shifted(tokens, [offset], grid, head_dim)
    exact = product(tokens, target(grid, offset))
    u, s, vt = np.linalg.svd(exact)
    best = (u[:, :head_dim] * s[:head_dim]) @ vt[:head_dim]
    gap = s[head_dim - 1] - s[head_dim] if head_dim < len(s) else 1.0
    energy = (s**2).sum()
    assert found.kept == pytest.approx((s[:head_dim] ** 2).sum() / energy if energy > 1e-18 else 1.0)
    assert query.shape == key.shape == (24, head_dim)
    if gap > 1e-6 * s[0] or head_dim >= found.rank:  # else the best approximation is not unique
        np.testing.assert_allclose(query @ key.mT, best, atol=1e-8 * max(s[0], 1))


@EVERYWHERE
@given(GRIDS, st.lists(OFFSETS, min_size=1, max_size=4), st.integers(1, 20), st.integers(0, 99))
def test_heads_that_share_a_key_have_their_products_on_the_best_span_that_one_key_has(grid, offsets, head_dim, seed):
    """The span from the k largest eigenvalues of Σ MᵀM; where the shifts fit into k, the products themselves."""
    tokens = tokens_of(grid, 24, 2.0, seed)
    queries, key, found = shifted(tokens, offsets, grid, head_dim)
    exact = [product(tokens, target(grid, offset)) for offset in offsets]
    values, vectors = np.linalg.eigh(sum(m.T @ m for m in exact))
    lost = values[::-1][head_dim:].sum()
    assert values.sum() * (1 - found.kept) == pytest.approx(lost, abs=1e-6 * max(values.sum(), 1))
    span = vectors[:, ::-1][:, :head_dim]
    gap = values[-head_dim] - values[-head_dim - 1] if head_dim < 24 else 1.0
    for query, m in zip(queries, exact, strict=True):
        if head_dim >= sum(grid) - 2:
            np.testing.assert_allclose(query @ key.mT, m, atol=1e-7 * max(np.abs(m).max(), 1))
        elif gap > 1e-6 * values[-1]:  # else the best span is not unique
            np.testing.assert_allclose(query @ key.mT, m @ span @ span.T, atol=1e-6 * max(np.abs(m).max(), 1))


@EVERYWHERE
@given(GRIDS, OFFSETS, st.integers(1, 4), st.integers(1, 16))
def test_equal_heads_that_share_a_key_have_the_factors_of_one_alone(grid, offset, group, head_dim):
    basis = Basis.of(tokens_of(grid, 24, 2.0)).cut(cutoff=CUTOFF)
    alone = separable(basis, [offset], grid, head_dim, border="clamp")
    shared = separable(basis, [offset] * group, grid, head_dim, border="clamp")
    assert torch.linalg.matrix_norm(shared.key).item() == pytest.approx(torch.linalg.matrix_norm(alone.key).item())
    for query in shared.query:
        np.testing.assert_allclose(query @ query.mT, alone.query[0] @ alone.query[0].mT, atol=1e-6)


@EVERYWHERE
@given(GRIDS, OFFSETS, st.integers(1, 16), st.sampled_from([None, 2.0]))
def test_the_rank_of_the_logits_is_at_most_rows_plus_columns_minus_two(grid, offset, head_dim, kappa):
    tokens = tokens_of(grid, 24, kappa)
    (query,), key, found = shifted(tokens, [offset], grid, head_dim)
    logits = tokens @ query @ key.mT @ tokens.mT
    rank = int((torch.linalg.svdvals(logits) > 1e-9).sum())
    assert rank <= min(head_dim, sum(grid) - 2)
    assert found.rank <= sum(grid) - 2


def softmax(matrix):
    exponential = np.exp(matrix - matrix.max(1, keepdims=True))
    return exponential / exponential.sum(1, keepdims=True)


@pytest.mark.parametrize("offset", [(0, 0), (-1, 0), (1, 1), (0, -1)])
@pytest.mark.parametrize("grid", [(8, 8), (6, 9)])
def test_the_map_of_a_model_is_the_product_of_two_soft_shifts(tiny_vit, grid, offset, monkeypatch):
    """On positions only, with unrelated codes: softmax(c S_y) ⊗ softmax(c S_x), queries at the border clamped."""
    model = tiny_vit(
        img_size=(2 * grid[0], 2 * grid[1]), embed_dim=192, num_heads=2, class_token=False, global_pool="avg"
    )
    start = Impulse(solver="separable", positions="keep")
    initialize(model, Positions("codes", kappa=None))
    monkeypatch.setattr(Impulse, "head_offsets", lambda self, site, rng: torch.tensor([offset] * 2))
    initialize(model, start)
    site = attention_sites(model)[0]
    tokens = layer_norm(model.pos_embed[0].detach().double())
    logits = site.scale * (tokens @ site.query.double()) @ (tokens @ site.key.double()).mT
    rows, columns = (centred_axis(size, shift) for size, shift in zip(grid, offset, strict=True))
    expected = np.kron(softmax(8 * rows), softmax(8 * columns))
    for head in range(2):
        np.testing.assert_allclose(logits[head].softmax(-1), expected, atol=0.03)


@pytest.mark.parametrize("kappa", [None, 2.0])
def test_codes_express_every_shift_and_sincos_do_not(kappa):
    grid = (16, 16)
    assert expressed(Basis.of(tokens_of(grid, 192, kappa)).cut(cutoff=CUTOFF), grid) > 0.97
    sincos = Basis.of(layer_norm(sincos_2d(grid, 192))).cut(cutoff=CUTOFF)
    assert expressed(sincos, grid) < 0.9

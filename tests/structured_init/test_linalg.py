"""Factorizations: exact, with fixed signs, and uniform where they are random."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from structured_init.util.linalg import (
    random_orthogonal,
    signed_svd,
    spread,
    truncated_svd,
)

SIZES = st.integers(1, 12)
EVERYWHERE = settings(max_examples=40, deadline=None, derandomize=True)


@EVERYWHERE
@given(SIZES, SIZES, st.integers(0, 999))
def test_signed_svd_rebuilds_the_matrix_with_numpys_singular_values_and_fixed_signs(rows, columns, seed):
    matrix = torch.randn(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    left, singular, right = signed_svd(matrix)
    torch.testing.assert_close(left * singular @ right.mT, matrix)
    np.testing.assert_allclose(singular, np.linalg.svd(matrix.numpy(), compute_uv=False), atol=1e-12)
    for factor in (left, right):
        torch.testing.assert_close(factor.mT @ factor, torch.eye(min(rows, columns), dtype=torch.float64))
    assert all(column[column.abs().argmax()] > 0 for column in left.T)


@EVERYWHERE
@given(st.sampled_from([1, 2, 255, 256, 257, 300, 511, 512, 513, 800]), st.integers(1, 40), st.integers(0, 99))
def test_random_orthogonal_is_numpys_qr_of_one_draw_with_a_positive_diagonal(rows, columns, seed):
    """However many rows are drawn at a time."""
    columns = min(rows, columns)
    gaussian = torch.randn(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).numpy()
    basis, triangle = np.linalg.qr(gaussian)
    found = random_orthogonal(rows, columns, generator=torch.Generator().manual_seed(seed))
    np.testing.assert_allclose(found, basis * np.sign(triangle.diagonal()), atol=1e-11)


def spectrum(singular, columns, seed=0):
    """A matrix (len + 3, columns) with given singular values, and its singular vectors."""
    source = torch.Generator().manual_seed(seed)
    left = random_orthogonal(len(singular) + 3, len(singular), generator=source)
    right = random_orthogonal(columns, len(singular), generator=source)
    return left * torch.tensor(singular, dtype=torch.float64) @ right.mT


@EVERYWHERE
@given(SIZES, SIZES, st.integers(1, 14), st.integers(0, 999))
def test_truncated_svd_is_the_beginning_of_the_signed_one(rows, columns, rank, seed):
    matrix = torch.randn(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    left, singular, right = truncated_svd(matrix, rank)
    u, s, v = signed_svd(matrix)
    kept = min(rank, rows, columns)
    assert left.shape[1] == singular.numel() == right.shape[1] == min(rank, columns)
    torch.testing.assert_close(singular[:kept], s[:kept], rtol=1e-6, atol=1e-9)
    assert (singular[kept:] < 1e-6).all()
    torch.testing.assert_close(left * singular @ right.mT, u[:, :kept] * s[:kept] @ v[:, :kept].mT, rtol=0, atol=1e-9)
    torch.testing.assert_close(right.mT @ right, torch.eye(right.shape[1], dtype=torch.float64))


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
@pytest.mark.parametrize("rank", [6, 20, 40])
def test_truncated_svd_of_few_of_many_values_is_numpys(rank, dtype, error):
    """6 of 40 are found alone, 20 and 40 with all others."""
    matrix = torch.randn(40, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(dtype)
    left, singular, right = truncated_svd(matrix, rank)
    u, s, vt = np.linalg.svd(matrix.double().numpy())
    assert left.dtype == singular.dtype == right.dtype == dtype
    wanted = (u[:, :rank] * s[:rank]) @ vt[:rank]
    assert np.linalg.norm((left * singular @ right.mT).double().numpy() - wanted) < error * np.linalg.norm(wanted)


@pytest.mark.parametrize("small", [1e-4, 1e-9, 1e-16, 0.0])
def test_tiny_singular_values_cost_the_factors_neither_the_product_nor_the_balance(small):
    """Squaring loses what is below 1e-8 of the largest; the product and the equal lengths do not depend on it."""
    matrix = spectrum([2.0, 1.0, 0.5, small, small], 5)
    left, singular, right = truncated_svd(matrix, 5)
    torch.testing.assert_close(left * singular @ right.mT, matrix, rtol=0, atol=1e-14)
    value, output = left * singular.sqrt(), right * singular.sqrt()
    torch.testing.assert_close(value.norm(dim=0), singular.sqrt(), rtol=0, atol=1e-12)
    # Balanced: W_vᵀ W_v = W_o W_oᵀ up to √(n ε) s₁, whatever the small ones are: an eigenvalue of MᵀM, which is
    # n × n, is found to n ε s₁², the square of what a singular value that should be zero can become.
    noise = math.sqrt(5 * torch.finfo(torch.float64).eps) * 2.0
    torch.testing.assert_close(value.mT @ value, output.mT @ output, rtol=0, atol=noise)
    assert torch.isfinite(value).all()


@EVERYWHERE
@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 99))
def test_spread_leaves_the_product_and_mixes_by_an_orthogonal_matrix(rank, rows, seed):
    source = torch.Generator().manual_seed(seed)
    left, right = torch.randn(rows, rank, dtype=torch.float64, generator=source), torch.randn(rank, 3).double()
    mixed, turned = spread(left, right, generator=source)
    torch.testing.assert_close(mixed @ turned, left @ right)
    torch.testing.assert_close(mixed @ mixed.mT, left @ left.mT)
    torch.testing.assert_close(turned.mT @ turned, right.mT @ right)

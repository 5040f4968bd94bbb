"""Factorizations: exact, with fixed signs, and uniform where they are random."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from structured_init.linalg import random_orthogonal, signed_svd

SIZES = st.integers(1, 12)
EVERYWHERE = settings(max_examples=40, deadline=None, derandomize=True)


@EVERYWHERE
@given(SIZES, SIZES, st.integers(0, 999))
def test_signed_svd_rebuilds_the_matrix_with_numpys_singular_values(rows, columns, seed):
    matrix = torch.randn(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    left, singular, right = signed_svd(matrix)
    torch.testing.assert_close(left * singular @ right.mT, matrix)
    np.testing.assert_allclose(singular, np.linalg.svd(matrix.numpy(), compute_uv=False), atol=1e-12)
    for factor in (left, right):
        torch.testing.assert_close(factor.mT @ factor, torch.eye(min(rows, columns), dtype=torch.float64))


@EVERYWHERE
@given(SIZES, SIZES, st.integers(0, 999))
def test_the_largest_entry_of_every_left_vector_is_positive(rows, columns, seed):
    matrix = torch.randn(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    left, _, _ = signed_svd(matrix)
    assert all(column[column.abs().argmax()] > 0 for column in left.T)


def test_signs_do_not_depend_on_those_that_lapack_returns(monkeypatch):
    matrix = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected, svd = signed_svd(matrix), torch.linalg.svd

    def other_library(matrix, full_matrices):
        left, singular, right = svd(matrix, full_matrices=full_matrices)
        flip = torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64)
        return left * flip, singular, right * flip[:, None]

    monkeypatch.setattr(torch.linalg, "svd", other_library)
    for found, wanted in zip(signed_svd(matrix), expected, strict=True):
        assert torch.equal(found, wanted)


@EVERYWHERE
@given(SIZES, SIZES, st.integers(0, 999))
def test_random_orthogonal_is_orthonormal_along_its_shorter_side(rows, columns, seed):
    matrix = random_orthogonal(rows, columns, generator=torch.Generator().manual_seed(seed))
    assert matrix.shape == (rows, columns)
    gram = matrix.mT @ matrix if rows >= columns else matrix @ matrix.mT
    torch.testing.assert_close(gram, torch.eye(min(rows, columns), dtype=torch.float64))


def test_random_orthogonal_is_haar_uniform():
    """Of a Haar 3×3 matrix, each entry is U(−1, 1) (Archimedes) and the trace has mean 0 and variance 1."""
    from scipy import stats

    generator = torch.Generator().manual_seed(0)
    matrices = torch.stack([random_orthogonal(3, 3, generator=generator) for _ in range(2000)])
    for row, column in ((0, 0), (1, 2), (2, 2)):
        assert stats.kstest(matrices[:, row, column].numpy(), stats.uniform(-1, 2).cdf).pvalue > 1e-3
    trace = matrices.diagonal(dim1=1, dim2=2).sum(1)
    assert abs(trace.mean().item()) < 4 / 2000**0.5
    assert abs(trace.var().item() - 1) < 0.15

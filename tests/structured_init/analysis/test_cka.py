"""Centered kernel alignment against the papers' definitions."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from structured_init.analysis import cka, cka_matrix, gram_matrix
from structured_init.analysis.cka import hsic1


def features(samples: int, width: int, seed: int) -> torch.Tensor:
    return torch.randn(samples, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def grams(blocks: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([gram_matrix(block) for block in blocks])


def u_statistic(k, l) -> float:  # noqa: E741
    """HSIC = E[K₁₂L₁₂] + E[K₁₂]E[L₃₄] − 2E[K₁₂L₁₃], each an average over tuples of distinct samples, in a loop."""
    m = len(k)
    pairs = [k[i][j] * l[i][j] for i, j in itertools.permutations(range(m), 2)]
    triples = [k[i][j] * l[i][q] for i, j, q in itertools.permutations(range(m), 3)]
    quadruples = [k[i][j] * l[q][r] for i, j, q, r in itertools.permutations(range(m), 4)]
    return statistics.fmean(pairs) + statistics.fmean(quadruples) - 2 * statistics.fmean(triples)


def dot(x: list[float], y: list[float]) -> float:
    return math.fsum(a * b for a, b in zip(x, y, strict=True))


def linear_kernel(x: torch.Tensor) -> list[list[float]]:
    return [[dot(a, b) for b in x.tolist()] for a in x.tolist()]


@pytest.mark.parametrize("samples", [4, 6])
def test_hsic_is_the_u_statistic_over_quadruples(samples):
    x, y = features(samples, 3, 0), features(samples, 5, 1)
    expected = u_statistic(linear_kernel(x), linear_kernel(y))
    assert hsic1(x @ x.T, y @ y.T).item() == pytest.approx(expected, rel=1e-10)
    assert hsic1(gram_matrix(x), gram_matrix(y)).item() == pytest.approx(expected, rel=1e-10)


def test_cka_is_the_ratio_of_means_over_minibatches_of_the_definition():
    x, y = [features(6, 3, seed) for seed in (0, 1, 2)], [features(6, 4, seed) for seed in (3, 4, 5)]
    pairs = [(linear_kernel(a), linear_kernel(b)) for a, b in zip(x, y, strict=True)]
    between, first, second = (
        statistics.fmean(u_statistic(*pair) for pair in chosen)
        for chosen in (pairs, [(k, k) for k, _ in pairs], [(other, other) for _, other in pairs])
    )
    expected = between / math.sqrt(first * second)
    found = cka_matrix({"a": grams(x)}, {"b": grams(y)})
    assert found.dtype == torch.float64
    assert found.item() == pytest.approx(expected, rel=1e-9)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), samples=st.integers(5, 12), scale=st.floats(0.01, 100))
def test_rotation_scale_and_shift_change_nothing(seed, samples, scale):
    x = features(samples, 4, seed)
    rotation, _ = torch.linalg.qr(features(4, 4, seed + 1))
    moved = scale * (x @ rotation) + 3
    same = cka_matrix({"x": grams([x])}, {"x": grams([x]), "moved": grams([moved])})
    torch.testing.assert_close(same, torch.ones(1, 2, dtype=torch.float64))


def test_what_all_samples_share_does_not_hide_differences_once_stored_in_float32():
    x = features(16, 8, 0)
    stored = gram_matrix(x + 1e5).float()
    assert cka(stored, gram_matrix(x)).item() == pytest.approx(1, abs=1e-5)
    assert cka(((x + 1e5) @ (x + 1e5).T).float(), gram_matrix(x)).item() != pytest.approx(1, abs=1e-2)


def test_matrix_has_a_row_per_layer_of_the_first_network():
    first = {"a": grams([features(8, 3, 0)]), "b": grams([features(8, 3, 1)])}
    second = first | {"c": grams([features(8, 5, 2)])}
    matrix = cka_matrix(first, second)
    assert matrix.shape == (2, 3)
    torch.testing.assert_close(matrix[:, :2].diagonal(), torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(matrix[1, 2], cka(first["b"], second["c"]))
    assert matrix[0, 1] == matrix[1, 0]


def test_constant_representation_has_no_similarity():
    constant = gram_matrix(torch.ones(8, 3))
    assert cka(constant, gram_matrix(features(8, 3, 0))).isnan()

"""What is measured of a model that has diverged is nan: a diagnostic never ends a training."""

from __future__ import annotations

import math

import pytest
import torch

from structured_init import analysis

BAD = [math.nan, math.inf]
GRID = (3, 3)


@pytest.fixture(params=BAD, ids=["nan", "inf"])
def bad(request):
    return request.param


def broken(bad, *shape):
    """Numbers of which the first is not finite."""
    tensor = torch.rand(*shape, generator=torch.Generator().manual_seed(0))
    tensor.view(-1)[0] = bad
    return tensor


def maps(bad):
    """Two heads, one of which is whole: what is not finite of another must not touch it."""
    whole = torch.rand(2, 2, 9, 9, generator=torch.Generator().manual_seed(0)).softmax(-1)
    whole[0, 0, 4, 4] = bad
    return whole


STATISTICS = {
    "mean_distance": lambda maps: analysis.mean_distance(maps, GRID),
    "entropy": analysis.entropy,
    "diagonal_mass": analysis.diagonal_mass,
    "diagonality": lambda maps: analysis.diagonality(maps, GRID),
    "impulse_mass": lambda maps: analysis.impulse_mass(maps, torch.zeros(2, 2, dtype=torch.int), GRID),
    "argmax_accuracy": lambda maps: analysis.argmax_accuracy(maps, torch.zeros(2, 2, dtype=torch.int), GRID),
    "effective_rank": analysis.effective_rank,
    "profile_energy": lambda maps: analysis.profile_energy(maps, GRID),
    "far_mass": lambda maps: analysis.far_mass(maps, GRID),
    "previous_token_score": analysis.previous_token_score,
}


WRONG = [(name, math.nan) for name in STATISTICS]
WRONG += [(name, -3.0) for name in STATISTICS if name != "effective_rank"]  # negative entries are no shares


@pytest.mark.parametrize(("name", "entry"), WRONG)
def test_a_statistic_of_a_head_with_a_wrong_entry_is_nan_and_of_the_other_is_not(name, entry):
    first, second = STATISTICS[name](maps(entry)).tolist()
    assert math.isnan(first)
    assert math.isfinite(second)


@pytest.mark.parametrize("name", STATISTICS)
def test_no_statistic_raises(name, bad):
    assert STATISTICS[name](maps(bad)).shape == (2,)


def test_the_summary_of_a_layer_never_raises(bad):
    summary = analysis.summarize(maps(bad), grid=GRID)
    assert math.isnan(summary["effective_rank"][0])
    assert math.isfinite(summary["effective_rank"][1])
    analysis.summarize(torch.full((1, 2, 9, 9), bad), grid=GRID)


def test_statistics_and_change_of_filters_are_nan(bad):
    whole, hurt = torch.rand(5, 3, 3), broken(bad, 5, 3, 3)
    assert all(map(math.isnan, analysis.filter_statistics(hurt).values()))
    for before, after in ((whole, hurt), (hurt, whole)):
        assert not any(map(math.isfinite, analysis.filter_change(before, after).values()))
    assert analysis.empirical_covariance(hurt).isnan().any()
    assert analysis.variance_map(hurt).isnan().any()


def test_similarity_of_representations_is_nan(bad):
    whole = torch.rand(6, 4, generator=torch.Generator().manual_seed(1)).double()
    grams = [features @ features.T for features in (whole, broken(bad, 6, 4).double())]
    assert analysis.cka(*(gram[None] for gram in grams)).isnan().all()

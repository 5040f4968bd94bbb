from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from structured_init.analysis.filters import (
    depthwise_filters,
    empirical_covariance,
    filter_statistics,
    variance_map,
)

sizes = st.integers(1, 5)
seeds = st.integers(0, 2**20)


def drawn(seed, filters, rows, columns):
    return torch.randn(filters, rows, columns, generator=torch.Generator().manual_seed(seed))


class Mixed(nn.Module):
    """Depthwise in one and two dimensions, and an ordinary convolution."""

    def __init__(self):
        super().__init__()
        self.line = nn.Conv1d(4, 4, 5, groups=4)
        self.plane = nn.Conv2d(3, 6, (3, 2), groups=3)
        self.full = nn.Conv2d(4, 4, 3)


def test_the_filters_of_every_depthwise_convolution_are_copied():
    model = Mixed()
    found = depthwise_filters(model)
    assert {name: tuple(filters.shape) for name, filters in found.items()} == {"line": (4, 1, 5), "plane": (6, 3, 2)}
    assert torch.equal(found["plane"], model.plane.weight[:, 0])
    found["plane"].zero_()
    assert model.plane.weight.abs().max() > 0
    assert depthwise_filters(nn.Linear(2, 2)) == {}


@given(seed=seeds, rows=sizes, columns=sizes)
def test_the_covariance_is_that_of_numpy_and_its_diagonal_the_variance_map(seed, rows, columns):
    filters = drawn(seed, 7, rows, columns)
    covariance = empirical_covariance(filters)
    expected = np.cov(filters.double().flatten(1).numpy(), rowvar=False, bias=True).reshape(rows * columns, -1)
    np.testing.assert_allclose(covariance, expected, atol=1e-12)
    torch.testing.assert_close(covariance.diagonal().reshape(rows, columns), variance_map(filters))


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (torch.ones(6, 3, 3), {"energy": 9, "mean_share": 1, "neighbour_correlation": 1, "effective_rank": 1}),
        (torch.eye(9).reshape(9, 3, 3), {"energy": 1, "mean_share": 1 / 9, "effective_rank": 9}),
        (
            nn.functional.pad(torch.tensor([[[2.0]], [[-2.0]]]), (1, 1, 1, 1)),
            {"energy": 4, "mean_share": 0, "centre_share": 1, "radius": 0, "effective_rank": 1},
        ),
        (  # of an even kernel the centre is the weight that padding "same" puts on the pixel itself
            nn.functional.pad(torch.tensor([[[2.0]], [[-2.0]]]), (1, 2, 1, 2)),
            {"energy": 4, "centre_share": 1},
        ),
        (torch.tensor([[[1.0, -1.0], [-1.0, 1.0]]]), {"neighbour_correlation": -1, "radius": math.sqrt(0.5)}),
    ],
)
def test_boxes_impulses_and_checkerboards_have_the_statistics_of_their_kind(filters, expected):
    found = filter_statistics(filters)
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)


@given(seed=seeds)
def test_the_covariance_and_the_mean_filter_make_up_the_second_moment(seed):
    filters = drawn(seed, 7, 3, 2) + 1
    mean = filters.double().flatten(1).mean(0)
    moment = empirical_covariance(filters, centred=False)
    torch.testing.assert_close(moment, empirical_covariance(filters) + torch.outer(mean, mean))
    assert moment.trace().item() == pytest.approx(filters.double().square().sum().item() / 7)

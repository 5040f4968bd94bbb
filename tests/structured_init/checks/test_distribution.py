"""Which distribution numbers were drawn from, and how often that is said wrongly."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from structured_init.checks.distribution import (
    Distribution,
    Sample,
    recognize,
    truncated,
)

DRAWS = {
    "uniform": lambda n, g: torch.empty(n).uniform_(-0.1, 0.1, generator=g),
    "normal": lambda n, g: torch.empty(n).normal_(0, 0.02, generator=g),
    "truncated normal": lambda n, g: torch.nn.init.trunc_normal_(torch.empty(n), 0, 0.02, -0.04, 0.04, generator=g),
}
SEEDS = 150


def kinds(name: str, n: int) -> Counter:
    generator = torch.Generator().manual_seed(n)
    return Counter(recognize(Sample(DRAWS[name](n, generator))).kind for _ in range(SEEDS))


@pytest.mark.parametrize("name", DRAWS)
def test_of_a_thousand_numbers_every_kind_is_recognized_at_every_seed(name):
    assert kinds(name, 1000) == {name: SEEDS}


@pytest.mark.parametrize("name", DRAWS)
def test_of_fewer_numbers_a_kind_is_left_unclear_rather_than_said_wrongly(name):
    assert set(kinds(name, 64)) <= {name, "unclear"}


def test_scale_cut_and_mean_are_found_within_their_sampling_error():
    generator = torch.Generator().manual_seed(0)
    n = 20_000
    found = recognize(Sample(torch.empty(n).normal_(0.01, 0.02, generator=generator)))
    assert found.kind == "normal"
    assert found.center == pytest.approx(0.01, abs=4 * 0.02 / math.sqrt(n))
    assert found.scale == pytest.approx(0.02, rel=4 / math.sqrt(2 * n))
    for cut in (2.0, 3.0):
        values = torch.nn.init.trunc_normal_(torch.empty(n), 0, 1, -cut, cut, generator=generator)
        found = recognize(Sample(values))
        assert (found.kind, found.cut) == ("truncated normal", cut)
        assert found.scale == pytest.approx(1, rel=0.05)
    for width in (48, 64):  # a uniform draw that was trained a little is no truncated one
        trained = torch.empty(width**2).uniform_(-1, 1, generator=generator)
        trained += 0.08 * torch.randn(width**2, generator=generator)
        assert recognize(Sample(trained)).kind == "other"
    found = recognize(Sample(torch.rand(n, generator=generator)))
    assert (found.kind, found.center, found.scale) == (
        "uniform", pytest.approx(0.5, abs=1e-3), pytest.approx(0.5, abs=1e-3)
    )  # fmt: skip


@pytest.mark.parametrize("cut", [1.5, 2.0, 3.0])
def test_moments_and_distribution_function_of_a_truncated_normal_are_scipys(cut):
    ours, theirs = truncated(0.3, cut, center=1.0), stats.truncnorm(-cut, cut, loc=1.0, scale=0.3)
    assert ours.std == pytest.approx(theirs.std())
    second, fourth = ours.moments
    assert fourth / second**2 == pytest.approx(theirs.stats("k") + 3)
    points = np.linspace(0, 2, 9)
    np.testing.assert_allclose(ours.cdf(points), theirs.cdf(points), atol=1e-12)
    assert ours.beyond(0.2) == pytest.approx(theirs.cdf(1.0 - 0.2) + theirs.sf(1.0 + 0.2))


@pytest.mark.parametrize("name", ["laplace", "student", "two scales"])
def test_heavy_tails_are_no_known_distribution(name):
    draw = np.random.default_rng(0)
    values = {
        "laplace": lambda: draw.laplace(size=3000),
        "student": lambda: draw.standard_t(5, size=3000),
        "two scales": lambda: np.concatenate([draw.normal(size=1500), 3 * draw.normal(size=1500)]),
    }[name]()
    assert recognize(Sample(torch.from_numpy(values))).kind == "other"


def test_few_or_equal_numbers_are_called_so():
    assert recognize(Sample(torch.randn(10, generator=torch.Generator().manual_seed(0)))).kind == "unclear"
    assert recognize(Sample(torch.full((5,), 0.25))) == Distribution("constant", center=0.25)

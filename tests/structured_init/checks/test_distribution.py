"""Which distribution numbers were drawn from, and how often that is said wrongly."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from structured_init.checks.distribution import SHAPES, Distribution, Sample, recognize

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


def test_scale_and_mean_are_found_within_their_sampling_error():
    generator = torch.Generator().manual_seed(0)
    n = 20_000
    found = recognize(Sample(torch.empty(n).normal_(0.01, 0.02, generator=generator)))
    assert found.kind == "normal"
    assert found.center == pytest.approx(0.01, abs=4 * 0.02 / math.sqrt(n))
    assert found.scale == pytest.approx(0.02, rel=4 / math.sqrt(2 * n))
    found = recognize(Sample(torch.nn.init.trunc_normal_(torch.empty(n), 0, 1, -2, 2, generator=generator)))
    assert (found.kind, found.scale) == ("truncated normal", pytest.approx(1, rel=0.02))
    for width in (48, 64):  # a uniform draw that was trained a little is no truncated one
        trained = torch.empty(width**2).uniform_(-1, 1, generator=generator)
        trained += 0.08 * torch.randn(width**2, generator=generator)
        assert recognize(Sample(trained)).kind == "other"
    found = recognize(Sample(torch.rand(n, generator=generator)))
    assert (found.kind, found.center, found.scale) == (
        "uniform", pytest.approx(0.5, abs=0.01), pytest.approx(0.5, rel=0.02)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "theirs"),
    [("uniform", stats.uniform(-1, 2)), ("normal", stats.norm()), ("truncated normal", stats.truncnorm(-2, 2))],
)
def test_moments_and_distribution_functions_are_scipys(kind, theirs):
    ours, points = SHAPES[kind], np.linspace(-3, 3, 9)
    assert (ours.std, ours.kurtosis) == (pytest.approx(theirs.std()), pytest.approx(theirs.stats("k") + 3))
    assert ours.bound == theirs.support()[1]
    np.testing.assert_allclose(ours.cdf(points), theirs.cdf(points), atol=1e-12)


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

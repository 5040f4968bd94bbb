import math

import numpy as np
import pytest

from structured_init import StructuredInitError
from structured_init.analysis.paired import paired_difference, paired_table, t_interval


def test_interval_of_three_values_is_the_textbook_one():
    interval = t_interval([1.0, 2.0, 3.0])
    assert interval.mean == pytest.approx(2.0)
    assert interval.half_width == pytest.approx(4.302653 * 1.0 / math.sqrt(3), rel=1e-6)  # t(0.975, 2) = 4.302653


def test_interval_at_three_seeds_is_about_two_and_a_half_standard_deviations():
    values = [0.0, 1.0, 5.0]
    assert t_interval(values).half_width / np.std(values, ddof=1) == pytest.approx(2.48, abs=0.01)


def test_one_seed_has_no_interval_and_prints_none():
    assert math.isinf(t_interval([50.0]).half_width)
    assert str(t_interval([50.0])) == "50.0"


@pytest.mark.parametrize("seeds", [3, 5])
def test_intervals_cover_the_truth_at_the_stated_rate(seeds):
    rng = np.random.default_rng(0)
    truth, trials = 0.7, 4000
    noise = rng.normal(size=(trials, seeds))
    shared = rng.normal(size=(trials, seeds)) * 10  # what pairing removes
    covered = 0
    for trial in range(trials):
        base = dict(enumerate(shared[trial]))
        arm = dict(enumerate(shared[trial] + truth + noise[trial]))
        difference = paired_difference(arm, base)
        covered += abs(difference.mean - truth) <= difference.half_width
    assert covered / trials == pytest.approx(0.95, abs=0.012)


def test_only_common_seeds_are_paired():
    difference = paired_difference({0: 5.0, 1: 7.0, 9: 100.0}, {0: 4.0, 1: 5.0, 3: 0.0})
    assert (difference.mean, difference.samples) == (1.5, 2)


def test_nothing_in_common_is_an_error():
    with pytest.raises(StructuredInitError, match="no seed in common"):
        paired_difference({0: 1.0}, {1: 1.0})


def test_table_is_markdown_with_a_row_per_arm_and_no_difference_to_itself():
    table = paired_table({"default": {0: 45.0, 1: 46.0}, "mimetic": {0: 52.0, 1: 54.0}}, baseline="default")
    rows = table.splitlines()
    assert rows[0].startswith("| start | seeds | accuracy %")
    assert rows[2].split("|")[-2].strip() == ""
    assert rows[3].split("|")[-2].strip().startswith("+7.5")
    assert {row.count("|") for row in rows} == {5}

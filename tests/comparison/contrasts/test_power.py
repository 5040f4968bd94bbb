"""What a comparison can see: checked against simulated t tests, and the textbook's numbers of pairs."""

import math

import numpy as np
import pytest
from compared import found
from scipy import stats

from comparison.contrasts.power import pairs_for, power, power_table, smallest_effect, usual_half_widths
from comparison.intervals import Interval, holm, t_interval
from comparison.runs.metric import Metric
from comparison.tables import interval_text

ACCURACY = Metric("test/accuracy")


@pytest.mark.parametrize(("pairs", "level"), [(3, 0.95), (20, 0.9)])
def test_the_smallest_effect_is_found_by_four_of_five_t_tests(pairs, level):
    effect = smallest_effect(2.0, pairs, level=level)
    values = np.random.default_rng(pairs).normal(effect, 2.0, size=(20_000, pairs))
    found = stats.ttest_1samp(values, 0.0, axis=1)
    share = np.mean((found.pvalue < 1 - level) & (found.statistic > 0))
    assert share == pytest.approx(0.8, abs=3 * math.sqrt(0.8 * 0.2 / 20_000))


def test_seeds_for_a_half_width_are_the_fewest_that_have_it():
    for width in (0.2, 0.5, 3.0):
        n = pairs_for(1.0, width)
        assert t_interval(list(np.tile([1, -1], n))[:n]).samples == n
        assert stats.t.isf(0.025, n - 1) / math.sqrt(n) <= width
        assert stats.t.isf(0.025, n - 2) / math.sqrt(n - 1) > width
    assert pairs_for(1.0, 0.5) == 18  # 2.110 / √18 = 0.497, 2.120 / √17 = 0.514


def test_the_visible_effect_is_called_better_among_all_arms_by_four_of_five_comparisons_or_a_few_more():
    pairs, arms, runs = 5, 4, 4_000
    rng = np.random.default_rng(pairs * arms)
    effect = power(list(np.tile([1.0, -1.0], pairs))[:pairs], (0.5,), family=arms).visible
    effect /= np.std(np.tile([1.0, -1.0], pairs)[:pairs], ddof=1)  # at a true deviation of 1
    values = rng.normal(0.0, 1.0, size=(runs, arms, pairs)) + np.array([effect] + [0.0] * (arms - 1))[:, None]
    tests = stats.ttest_1samp(values, 0.0, axis=2)
    found = zip(tests.pvalue, tests.statistic[:, 0], strict=True)
    called = [holm(dict(enumerate(row)))[0] < 0.05 and first > 0 for row, first in found]
    assert 0.8 - 3 * math.sqrt(0.8 * 0.2 / runs) < np.mean(called) < 0.84


def test_power_is_that_of_the_paired_differences():
    found = power([1.0, 3.0, 2.0], (0.2, 0.5))
    assert (found.pairs, found.deviation) == (3, pytest.approx(1.0))
    assert list(found.seeds.items()) == [(0.5, 18), (0.2, pairs_for(1.0, 0.2))]
    assert power([1.0], (0.5,)) is None
    assert power([0.1, 0.1, 0.1], (0.5,)) is None


@pytest.mark.parametrize(
    ("metric", "scale", "widths"),
    [
        (ACCURACY, 80.0, (0.5, 0.2)),
        (Metric("test/perplexity", "min"), 23.4, (0.2, 0.1)),
        (Metric("val/loss", "min"), 0.9, (0.01, 0.005)),
        (Metric("val/score"), 0.0, (1.0, 1.0)),
    ],
)
def test_half_widths_suit_the_metric(metric, scale, widths):
    assert usual_half_widths(metric, scale) == pytest.approx(widths)


def test_a_report_says_what_it_could_have_seen():
    (judged,) = found({"default": [0.80, 0.82, 0.84], "sincos": [0.85, 0.88, 0.88]})  # differences 5, 6, 4
    (row,) = power_table(judged).rows
    assert [cell.text for cell in row] == ["sincos − default", "3", "1.0", "3.3", "18", str(pairs_for(1.0, 0.2))]
    low, high = (smallest_effect(1.0, 3) * math.sqrt(2 / stats.chi2.isf(tail, 2)) for tail in (0.025, 0.975))
    assert row[3].note == f"{low:.1f} to {high:.0f}"


def test_an_interval_ends_where_the_metric_does_and_then_shows_both_ends():
    assert ACCURACY.cut(Interval(98.0, 90.0, 106.0, 3)) == Interval(98.0, 90.0, 100.0, 3)
    assert ACCURACY.cut(Interval(2.0, -150.0, 154.0, 3), difference=True) == Interval(2.0, -100.0, 100.0, 3)
    assert interval_text(Interval(98.0, 90.0, 100.0, 3), 1) == "98.0 (90.0 to 100.0)"
    assert interval_text(Interval(20.0, -100.0, 100.0, 3), 1, signed=True) == "+20.0 (−100.0 to +100.0)"
    assert interval_text(Interval(98.0, 97.0, 99.0, 3), 1) == "98.0 ± 1.0"

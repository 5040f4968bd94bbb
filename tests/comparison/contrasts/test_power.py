"""What a comparison can see: checked against simulated t tests."""

import math

import numpy as np
import pytest
from compared import found
from scipy import stats

from comparison.contrasts.power import power_table, smallest_effect
from comparison.intervals import Interval, holm
from comparison.runs.folder import Question
from comparison.runs.metric import Metric

ACCURACY = Metric("test/accuracy")


@pytest.mark.parametrize(("pairs", "level"), [(3, 0.95), (20, 0.9)])
def test_the_smallest_effect_is_found_by_four_of_five_t_tests(pairs, level):
    effect = smallest_effect(2.0, pairs, level=level)
    values = np.random.default_rng(pairs).normal(effect, 2.0, size=(20_000, pairs))
    found = stats.ttest_1samp(values, 0.0, axis=1)
    share = np.mean((found.pvalue < 1 - level) & (found.statistic > 0))
    assert share == pytest.approx(0.8, abs=3 * math.sqrt(0.8 * 0.2 / 20_000))


def test_the_visible_effect_is_called_better_among_all_arms_by_four_of_five_comparisons_or_a_few_more():
    pairs, arms, runs = 5, 4, 4_000
    rng = np.random.default_rng(pairs * arms)
    effect = smallest_effect(1.0, pairs, level=1 - 0.05 / arms)
    values = rng.normal(0.0, 1.0, size=(runs, arms, pairs)) + np.array([effect] + [0.0] * (arms - 1))[:, None]
    tests = stats.ttest_1samp(values, 0.0, axis=2)
    found = zip(tests.pvalue, tests.statistic[:, 0], strict=True)
    called = [holm(dict(enumerate(row)))[0] < 0.05 and first > 0 for row, first in found]
    assert 0.8 - 3 * math.sqrt(0.8 * 0.2 / runs) < np.mean(called) < 0.84


def test_a_report_says_what_it_could_have_seen():
    (judged,) = found({"default": [0.80, 0.82, 0.84], "sincos": [0.85, 0.88, 0.88]})  # differences 5, 6, 4
    (row,) = power_table(judged).rows
    assert [cell.text for cell in row] == ["sincos − default", "3", "3.3"]
    assert smallest_effect(1.0, 3) == pytest.approx(3.3, abs=0.05)
    (several,) = found({"default": [0.80, 0.82, 0.84], "sincos": [0.85, 0.88, 0.88], "mimetic": [0.9, 0.91, 0.97]})
    effect = smallest_effect(1.0, 3, level=1 - 0.05 / 2)  # of two differences
    assert power_table(several).rows[0][2].text == f"{effect:.1f}"


@pytest.mark.parametrize(
    ("values", "question"),
    [([0.85, 0.88], None), ([0.85, 0.87, 0.89], None), ([0.85, 0.88, 0.88], Question(margin=0.5))],
    ids=["two seeds", "equal differences", "something was to be decided"],
)
def test_nothing_is_said_where_the_deviation_is_unknown_or_looks_decide(values, question):
    (judged,) = found({"default": [0.80, 0.82, 0.84], "sincos": values}, question=question)
    assert power_table(judged).rows == []


def test_an_interval_ends_where_the_metric_does_and_then_shows_both_ends():
    assert ACCURACY.cut(Interval(98.0, 90.0, 106.0, 3)) == Interval(98.0, 90.0, 100.0, 3)
    assert ACCURACY.cut(Interval(2.0, -150.0, 154.0, 3), difference=True) == Interval(2.0, -100.0, 100.0, 3)
    assert Interval(98.0, 90.0, 100.0, 3).text(1) == "98.0 (90.0 to 100.0)"
    assert Interval(20.0, -100.0, 100.0, 3).text(1, signed=True) == "+20.0 (−100.0 to +100.0)"
    assert Interval(98.0, 97.0, 99.0, 3).text(1) == "98.0 ± 1.0"

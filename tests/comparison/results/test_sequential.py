"""Intervals that hold under looking again and again: simulated here with numbers of their own, not the module's."""

import math

import numpy as np
import pytest
from scipy import stats

from comparison.results.decisions import Question, decide
from comparison.results.metric import Metric
from comparison.results.sequential import critical_value, looking_interval, narrow_interval

ACCURACY, LOSS = Metric("test/accuracy"), Metric("val/loss", "min")


def studentized(paths, seeds, seed):
    """Running means and deviations of standard normal values; (paths, seeds) each."""
    values = np.random.default_rng(seed).standard_normal((paths, seeds))
    n = np.arange(1, seeds + 1)
    mean = np.cumsum(values, axis=1) / n
    centred = np.cumsum(values**2, axis=1) - n * mean**2
    return mean, np.sqrt(np.maximum(centred, 0) / np.maximum(n - 1, 1)), n


def test_all_looks_together_miss_the_truth_as_rarely_as_one_interval_may():
    horizon, level = 40, 0.95
    mean, deviation, n = studentized(8000, horizon, 7)
    mean, deviation, n = mean[:, 4:], deviation[:, 4:], n[4:]
    critical = np.array([critical_value(each, horizon, level) for each in n])
    error = 3 * math.sqrt((1 - level) * level / 8000)
    missed = np.abs(mean) > critical * deviation / np.sqrt(n)
    assert missed.any(axis=1).mean() == pytest.approx(0.9 * (1 - level), abs=error)
    at_each = np.abs(mean) > stats.t.isf((1 - level) / 2, n - 1) * deviation / np.sqrt(n)
    assert at_each.any(axis=1).mean() > 2.5 * (1 - level)  # why Student's t is not enough


def test_an_interval_under_looking_is_wider_than_students_and_has_no_ends_before_the_fifth_value():
    values = [1.0, 3.0, 2.0, 5.0, 4.0, 2.5, 3.5, 1.5, 4.5, 3.0]
    error = np.std(values, ddof=1) / math.sqrt(10)
    interval = looking_interval(values, 40)
    assert interval.mean == pytest.approx(3.0)
    assert interval.half_width == pytest.approx(critical_value(10, 40) * error)
    assert interval.half_width > narrow_interval(values).half_width > stats.t.isf(0.025, 9) * error
    assert math.isinf(looking_interval(values[:4], 40).half_width)
    assert math.isinf(narrow_interval(values[:7]).half_width)


def around(mean, deviation, n):
    """Values with exactly this mean and standard deviation, of which no early part has decided anything."""
    values = np.linspace(-1, 1, n)[np.argsort(np.arange(n) * 7 % n)] if n > 1 else np.zeros(1)
    values = values - values.mean()
    return list(mean + deviation * values / values.std(ddof=1))


@pytest.mark.parametrize(
    ("mean", "metric", "question", "kind"),
    [
        (3.0, ACCURACY, Question(margin=0.5), "better"),
        (-3.0, ACCURACY, Question(margin=0.5), "worse"),
        (-3.0, LOSS, Question(margin=0.5), "better"),
        (0.1, ACCURACY, Question(margin=1.5), "equivalent"),
        (0.6, ACCURACY, Question(margin=0.5), "undecided"),
        (3.0, ACCURACY, Question(precision=1.0), "better"),
        (0.1, ACCURACY, Question(precision=1.0), "equivalent"),
        (3.0, ACCURACY, Question(precision=0.1), "undecided"),
    ],
)
def test_a_difference_is_decided_by_its_interval(mean, metric, question, kind):
    assert decide(around(mean, 1.0, 16), question, metric).kind == kind


def test_what_was_decided_stays_whatever_later_seeds_say():
    values = [2.0, 2.2, 1.9, 2.1, 2.05]
    decided = decide(values, Question(margin=0.5), ACCURACY)
    assert decided.kind == "better"
    assert decide([*values, -50.0, 60.0, -70.0], Question(margin=0.5), ACCURACY) == decided


def test_seeds_that_all_agree_decide_nothing_and_end_the_training():
    few, many = (decide([0.5] * n, Question(margin=1.0), ACCURACY) for n in (5, 10))
    assert (few.kind, few.helped) == ("undecided", True)
    assert (many.kind, many.helped) == ("undecided", False)
    assert many.reason == "all seeds agree to the last digit"

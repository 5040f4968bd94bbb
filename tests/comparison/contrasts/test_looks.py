"""Decisions at fixed looks, simulated here with numbers of their own, not the module's."""

import math

import numpy as np
import pytest
from scipy import stats

from comparison.contrasts.contrasts import decide, look_interval, next_look
from comparison.runs.folder import Question
from comparison.runs.metric import Metric

ACCURACY, LOSS = Metric("test/accuracy"), Metric("val/loss", "min")


def test_all_looks_together_miss_the_truth_at_most_as_often_as_one_interval_may():
    values = np.random.default_rng(7).standard_normal((20_000, 40))

    def missed(looks, level):
        found = [
            np.abs(stats.ttest_1samp(values[:, :n], 0, axis=1).statistic) > stats.t.isf(level / 2, n - 1) for n in looks
        ]
        return np.any(found, axis=0)

    assert missed(range(5, 41), 0.05).mean() > 0.2  # why looking at will is not enough
    at_four_looks = missed((5, 10, 20, 40), 0.05 / 4)
    assert 0.035 < at_four_looks.mean() < 0.05
    mine = [any(look_interval(path[:n]).excludes_zero for n in range(5, 41)) for path in values[:300].tolist()]
    assert mine == at_four_looks[:300].tolist()


def test_a_look_has_a_quarter_of_the_error_and_pairs_after_it_wait_for_the_next():
    values = [1.0, 3.0, 2.0, 5.0, 4.0, 2.5, 3.5, 1.5, 4.5, 3.0]
    half_width = stats.t.isf(0.05 / 8, 9) * np.std(values, ddof=1) / math.sqrt(10)
    assert look_interval(values).half_width == pytest.approx(half_width)
    assert look_interval(values[:9]) == look_interval(values[:5])
    assert math.isinf(look_interval(values[:4]).half_width)
    assert [next_look(pairs) for pairs in (3, 5, 39, 40)] == [5, 10, 40, None]
    assert next_look(10, most=15) is None


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
        (3.0, ACCURACY, Question(precision=1.5), "better"),
        (0.1, ACCURACY, Question(precision=1.5), "equivalent"),
        (3.0, ACCURACY, Question(precision=0.1), "undecided"),
    ],
)
def test_a_difference_is_decided_by_its_interval(mean, metric, question, kind):
    assert decide(around(mean, 1.0, 16), question, metric).verdict == kind


def test_what_was_decided_stays_whatever_later_seeds_say():
    values = [2.0, 2.2, 1.9, 2.1, 2.05]
    decided = decide(values, Question(margin=0.5), ACCURACY)
    assert decided.verdict == "better"
    assert decide([*values, -50.0, 60.0, -70.0], Question(margin=0.5), ACCURACY) == decided


def test_an_open_difference_waits_for_the_next_look_unless_the_limit_is_reached():
    assert decide(around(0.4, 5.0, 20), Question(margin=0.5), ACCURACY).next_look == 40
    assert decide(around(0.7, 1.0, 5), Question(margin=0.5, most=5), ACCURACY).next_look is None

"""Paired differences: intervals that cover the truth as often as they say, and verdicts that hold together."""

import math

import numpy as np
import pytest
from compared import PLACES, found
from scipy import stats

from comparison.intervals import Interval, holm, p_value, paired_values, t_interval
from comparison.runs.metric import Metric
from comparison.say.headline import headline_table
from structured_init import StructuredInitError


def test_interval_of_three_values_is_the_textbook_one():
    interval = t_interval([1.0, 2.0, 3.0])
    assert interval.mean == pytest.approx(2.0)
    assert interval.half_width == pytest.approx(4.302653 * 1.0 / math.sqrt(3), rel=1e-6)  # t(0.975, 2) = 4.302653
    assert (interval.low, interval.high) == (pytest.approx(-0.4841, abs=1e-4), pytest.approx(4.4841, abs=1e-4))
    assert t_interval({0: 1.0, 7: 2.0, 9: 3.0}) == interval  # seeds are no values


def test_one_seed_has_no_interval_and_prints_none():
    assert math.isinf(t_interval([50.0]).half_width)
    assert str(t_interval([50.0])) == "50.0"
    assert not t_interval([50.0]).excludes_zero


def test_an_interval_prints_the_digits_that_it_knows():
    assert str(t_interval([0.03, 0.02, 0.025])) == "0.025 ± 0.012"
    assert str(t_interval([-810.0, -820.0, -800.0])) == "−810 ± 25"


@pytest.mark.parametrize(("seeds", "level"), [(3, 0.95), (10, 0.9)])
def test_intervals_of_paired_differences_cover_the_truth_at_the_stated_rate(seeds, level):
    rng = np.random.default_rng(0)
    truth, trials = 0.7, 3000
    noise = rng.normal(size=(trials, seeds))
    shared = rng.normal(size=(trials, seeds)) * 10  # what pairing removes
    covered = 0
    for trial in range(trials):
        base = dict(enumerate(shared[trial]))
        arm = dict(enumerate(shared[trial] + truth + noise[trial]))
        difference = t_interval(paired_values(arm, base), level)
        covered += difference.low <= truth <= difference.high
    # Three standard errors of a share estimated from so many trials.
    assert covered / trials == pytest.approx(level, abs=3 * math.sqrt(level * (1 - level) / trials))


def test_only_common_seeds_are_paired():
    assert paired_values({0: 5.0, 1: 7.0, 9: 100.0}, {0: 4.0, 1: 5.0, 3: 0.0}) == {0: 1.0, 1: 2.0}
    with pytest.raises(StructuredInitError, match="no seed in common"):
        paired_values({0: 1.0}, {1: 1.0})


def test_holm_multiplies_the_smallest_by_all_and_never_falls():
    # The example of Holm's paper in shape: 0.01 × 4, 0.02 × 3, 0.022 × 2 raised to the one before, 0.3.
    assert holm({"c": 0.022, "a": 0.01, "d": 0.3, "b": 0.02}) == pytest.approx(
        {"c": 0.06, "a": 0.04, "d": 0.3, "b": 0.06}
    )
    assert holm({"a": 0.8, "b": 0.9}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


def test_the_p_value_is_that_of_the_paired_t_test_and_one_where_seeds_say_nothing():
    arm, baseline = np.array([0.81, 0.9, 0.77, 0.86]), np.array([0.8, 0.84, 0.75, 0.87])
    assert p_value(list(arm - baseline)) == pytest.approx(stats.ttest_rel(arm, baseline).pvalue)
    assert p_value([3.0]) == p_value([2.0, 2.0, 2.0]) == p_value([1.0, math.nan]) == 1.0


def test_of_null_comparisons_with_three_seeds_one_in_twenty_finds_an_arm_that_differs():
    arms, alone, trials = 5, 0.22, 1500
    rng = np.random.default_rng(arms)
    values = rng.normal(size=(trials, 1 + arms, 3))
    wrong = np.zeros(2)
    for differences in values[:, 1:] - values[:, :1]:
        p = {arm: p_value(list(of_arm)) for arm, of_arm in enumerate(differences)}
        wrong += [min(p.values()) < 0.05, min(holm(p).values()) < 0.05]
    tolerance = [3 * math.sqrt(rate * (1 - rate) / trials) for rate in (alone, 0.05)]
    assert wrong[0] / trials == pytest.approx(alone, abs=tolerance[0])
    assert wrong[1] / trials == pytest.approx(0.05, abs=tolerance[1])


def test_better_is_said_of_what_holds_among_all_arms():
    base = [80.0, 81.0, 82.0]
    values = {"default": base, "strong": [84.0, 85.0, 86.1], "weak": [81.0, 82.3, 83.9], "none": [80.5, 80.7, 82.0]}
    (judged,) = found(values, percent=True)
    arms = {each.arm: each for each in judged.contrasts}
    p = {name: stats.ttest_rel(values[name], base).pvalue for name in arms}
    assert p["weak"] < 0.05 < 2 * p["weak"]
    assert arms["weak"].adjusted == pytest.approx(2 * p["weak"])  # the second smallest of three
    said = {name: each.verdict for name, each in arms.items()}
    assert said == {"strong": "better", "weak": "undecided", "none": "undecided"}
    cells = {row[0].text: row[-1] for row in headline_table(judged).rows}
    assert (cells["strong"].text, cells["strong"].kind) == ("+4.0 ± 0.1", "gain")
    assert (cells["weak"].text, cells["weak"].kind) == ("+1.4 ± 1.1", "open")
    assert cells["weak"].note == f"3 pairs, undecided, adjusted p = {2 * p['weak']:.3f}"
    (two,) = found({arm: values[arm] for arm in ("default", "weak")}, percent=True)
    (alone,) = two.contrasts
    assert (alone.verdict, alone.adjusted) == ("better", pytest.approx(p["weak"]))


def test_an_interval_ends_where_the_metric_does_and_then_shows_both_ends():
    accuracy = Metric("test/accuracy")
    assert accuracy.cut(Interval(98.0, 90.0, 106.0, 3)) == Interval(98.0, 90.0, 100.0, 3)
    assert accuracy.cut(Interval(2.0, -150.0, 154.0, 3), difference=True) == Interval(2.0, -100.0, 100.0, 3)
    assert Interval(98.0, 90.0, 100.0, 3).text(1) == "98.0 (90.0 to 100.0)"
    assert Interval(20.0, -100.0, 100.0, 3).text(1, signed=True) == "+20.0 (−100.0 to +100.0)"
    assert Interval(98.0, 97.0, 99.0, 3).text(1) == "98.0 ± 1.0"


def test_verdicts_of_all_places_of_a_grid_hold_together():
    base, weak = [80.0, 81.0, 82.0], [81.0, 82.3, 83.9]
    p = stats.ttest_rel(weak, base).pvalue
    places = found({"default": [base] * len(PLACES), "weak": [weak] * len(PLACES)}, percent=True)
    for place in places:
        (each,) = place.contrasts
        assert (each.verdict, each.adjusted) == ("undecided", pytest.approx(len(places) * p))

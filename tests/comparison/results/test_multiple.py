"""Verdicts on many arms hold together."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from comparison.report.sentences import findings
from comparison.results.effects import effects
from comparison.results.multiple import holm, p_value

COLUMNS = ["arm", "seed", "chosen", "learning_rate", "test/accuracy"]


def found(values):
    """The effects of arm → accuracy by seed, in percent; the first arm is the baseline."""
    manifest = {"arms": dict.fromkeys(values), "baseline": next(iter(values)), "metric": "test/accuracy"}
    manifest |= {"mode": "max", "grid": {}, "learning_rates": []}
    rows = [(arm, seed, True, math.nan, v / 100) for arm, of in values.items() for seed, v in enumerate(of)]
    return effects(pd.DataFrame(rows, columns=COLUMNS), manifest)[0]


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


@pytest.mark.parametrize(("arms", "alone"), [(5, 0.22), (13, 0.42)])
def test_of_null_comparisons_with_three_seeds_one_in_twenty_finds_an_arm_that_differs(arms, alone):
    rng, trials = np.random.default_rng(arms), 1500
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
    arms = {arm.name: arm.baseline for arm in found(values).arms if arm.baseline}
    p = {name: stats.ttest_rel(values[name], base).pvalue for name in arms}
    assert p["weak"] < 0.05 < 2 * p["weak"]
    assert arms["weak"].adjusted == pytest.approx(2 * p["weak"])  # the second smallest of three
    assert {name: effect.is_gain for name, effect in arms.items()} == {"strong": True, "weak": None, "none": None}
    said = " ".join(findings(found(values))).replace("\N{NO-BREAK SPACE}", " ")
    assert "Better than default: strong +4.0 ± 0.1 points" in said
    assert "not told apart among 3 arms, though the interval alone excludes zero: weak +1.4 ± 1.1 points" in said
    alone = found({arm: values[arm] for arm in ("default", "weak")}).arms[1].baseline
    assert (alone.is_gain, alone.adjusted) == (True, pytest.approx(p["weak"]))

"""The simulation of many arms compares the methods that it names."""

import numpy as np
import pytest
from scipy import stats

from benchmarks.many_arms import METHODS, found, markdown, simulate


def test_the_methods_agree_with_scipy_on_the_same_values():
    rng = np.random.default_rng(0)
    values = simulate(rng, 30, 4, 5, noisy=False, effect=2.0)
    said = found(values, rng)
    assert tuple(said) == METHODS
    for trial in range(0, 30, 10):
        baseline, *arms = values[trial]
        p = stats.dunnett(*arms, control=baseline, rng=np.random.default_rng(1)).pvalue
        clear = np.abs(p - 0.05) > 0.01  # the critical value is simulated
        assert ((p < 0.05) == said["Dunnett, groups"][trial])[clear].all()
        single = [stats.ttest_rel(arm, baseline).pvalue < 0.05 for arm in arms]
        assert single == said["each alone"][trial].tolist()
    assert (said["Holm"] <= said["each alone"]).all()


def test_an_effect_and_a_noisy_arm_are_where_they_are_said_to_be():
    values = simulate(np.random.default_rng(1), 4000, 3, 3, noisy=True, effect=3.0)
    assert values.mean((0, 2)) == pytest.approx([0, 3, 0, 0], abs=0.2)
    spread = (values - values[:, :1]).std((0, 2))
    assert spread[1:] == pytest.approx([2**0.5, 2**0.5, 26**0.5], rel=0.05)


def test_the_tables_have_a_row_for_every_setting():
    row = {"arms": 5, "seeds": 3, "noisy_arm": True}
    row |= {"wrong": dict.fromkeys(METHODS, 0.05), "power": dict.fromkeys(METHODS, 0.5)}
    text = markdown([row])
    assert "| 5 | 3 | one ×5 | 5.0 | 5.0 |" in text
    assert "| 5 | 3 | one ×5 | 50.0 |" in text

"""Results that are all or nothing: counts, and exact tests."""

import math

import numpy as np
import pytest
from compared import found
from scipy import stats

from comparison.contrasts.place import check_success, count_successes
from comparison.contrasts.targets import Share, fisher, share
from comparison.say.headline import headline_table, notice
from structured_init import StructuredInitError


def one(values, *further, **changes):
    """What was found of arm → accuracy by seed, at a single place."""
    return found(values, *further, **changes)[0]


def successes(judged, threshold):
    """The same by counts of runs that succeed."""
    return count_successes([judged], threshold)[0]


def test_the_interval_of_a_share_is_that_of_clopper_and_pearson():
    counted = share(2, 3)
    # Its ends are the shares at which 2 of 3, or a count beyond, has a probability of 2.5 %.
    assert stats.binom.sf(1, 3, counted.low) == pytest.approx(0.025)
    assert stats.binom.cdf(2, 3, counted.high) == pytest.approx(0.025)
    assert (share(0, 5).low, share(5, 5).high) == (0, 1)


def test_fishers_test_is_the_chance_of_tables_no_likelier_with_the_same_margins():
    # 5 of 5 against 0 of 5: two of the C(10, 5) = 252 tables are as extreme.
    assert fisher(Share(5, 5, 0, 1), Share(0, 5, 0, 1)) == pytest.approx(2 / math.comb(10, 5))


def test_fishers_test_keeps_its_level_whatever_the_runs_of_a_seed_share():
    rng, trials, seeds, within_seed = np.random.default_rng(0), 4000, 8, 0.6
    shared, own = rng.normal(size=(trials, seeds, 1)), rng.normal(size=(trials, seeds, 2))
    counts = (math.sqrt(within_seed) * shared + math.sqrt(1 - within_seed) * own > 0).sum(1)
    p = {
        pair: fisher(Share(pair[0], seeds, 0, 1), Share(pair[1], seeds, 0, 1))
        for pair in {tuple(each) for each in counts.tolist()}
    }
    assert np.mean([p[tuple(each)] < 0.05 for each in counts.tolist()]) < 0.05


def test_runs_are_counted_where_they_are_as_good_and_one_that_diverged_is_none():
    arms = {"default": [0.1, 0.95, 0.2, math.nan], "mimetic": [0.96, 0.99, 0.95, 0.97]}
    counted = {arm.name: arm.share for arm in successes(one(arms), 0.95).arms}
    assert (counted["default"].count, counted["default"].runs) == (1, 4)
    assert (counted["mimetic"].count, counted["mimetic"].runs) == (4, 4)
    more = one({"default": [0.99] * 10 + [0.1] * 20, "mimetic": [0.99] * 8})
    assert successes(more, 0.95).to_baseline("mimetic").verdict == "better"  # 8 of 8 are more than 10 of 30
    losses = one({"a": [0.1, 0.3], "b": [0.2, 0.4]}, metric="test/accuracy", mode="min")
    assert [arm.share.count for arm in successes(losses, 0.2).arms] == [1, 1]


def test_the_table_says_who_succeeds_more_often():
    counted = successes(one({"default": [0.1] * 6, "mimetic": [0.99] * 6, "half": [0.99, 0.1] * 3}), 0.8)
    lines = headline_table(counted).markdown().splitlines()
    header, _, default, mimetic, half = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    assert header == [
        "arm",
        "runs with test accuracy ≥ 80 %",
        "mean test accuracy %, higher is better",
        "against default",
    ]
    # p is twice 2 / C(12, 6).
    assert mimetic == ["mimetic", "6 of 6 (54 to 100 %)", "99.0", "better (adjusted p = 0.004)"]
    assert default[2:] == ["10.0", "baseline"]
    assert half[3] == "undecided (adjusted p = 0.18)"


def test_where_all_results_are_0_the_page_says_to_train_longer():
    floor = {"default": [0.0, 0.0], "mimetic": [0.00001, 0.0]}
    assert notice(one(floor)) == "Nothing has been learned yet: train longer."
    assert notice(one(floor, "test/loss", "min")) == ""  # nothing is left to be learned
    assert notice(one({"default": [0.0, 0.0], "mimetic": [0.0, 0.01]})) == ""


def test_a_threshold_in_percent_is_refused():
    assert check_success(0.95, None, "test/accuracy") == 0.95
    assert check_success(3.5, 0.5, "test/perplexity") == 3.5
    assert check_success(None, 0.9, "test/accuracy") == 0.9
    with pytest.raises(StructuredInitError, match=r"--success 95 is more than any test/accuracy .* mean 0.95\?"):
        check_success(95, None, "test/accuracy")


def test_a_run_whose_loss_is_no_number_has_not_succeeded_whatever_its_accuracy():
    values = {"default": [0.1, 0.2, 0.3], "a": [0.96, 0.97, 0.98]}
    judged = one(values, diverged=[("a", 1)])
    assert [(arm.share.count, arm.share.runs) for arm in successes(judged, 0.95).arms] == [(0, 3), (2, 3)]

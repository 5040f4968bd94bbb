"""A race of initializations: whom it keeps, and what it asks for."""

import math

import pytest

from comparison.plan.race import Race

SEEDS = range(6)
WIGGLE = [0.03, -0.02, 0.05, -0.04, 0.01, -0.03]


def raced(arms, value, **options):
    """Run a race; return it with the arms that each seed was asked of."""
    asked = []
    race = Race(arms, "default", **options)
    for seed in SEEDS:
        asked.append(["default", *race.left])
        race.take(seed, {arm: value(arm, seed) for arm in asked[-1]})
        if not race.left:
            break
    return race, asked


def steady(arm, seed):
    """The arm's number is its gain; seeds differ much, but alike for all arms."""
    gain = 0.0 if arm == "default" else float(arm.removeprefix("arm"))
    return 10 * seed + gain + WIGGLE[(seed + len(arm)) % 6]


@pytest.mark.parametrize(("mode", "sign"), [("max", 1), ("min", -1)])
def test_the_best_arm_wins_and_the_worse_half_leaves_after_each_seed(mode, sign):
    arms = ["default", *(f"arm{sign * number}" for number in range(1, 21))]
    found, asked = raced(arms, steady, mode=mode)
    assert [len(each) - 1 for each in asked] == [20, 10, 5, 3, 3, 3]
    assert found.winner == f"arm{sign * 20}"
    assert found.left == [f"arm{sign * number}" for number in (20, 19, 18)]
    assert found.gains[found.winner] == pytest.approx(20, abs=0.1)  # less what the names' lengths wiggle
    assert found.dropped[f"arm{sign}"] == "not among the best 10 after seed 0"
    assert (found.seeds["default"], found.seeds[f"arm{sign}"], found.seeds[f"arm{sign * 11}"]) == (6, 1, 2)


def test_nothing_wins_where_nothing_looks_better():
    found, _ = raced([f"arm-{number}" for number in range(1, 9)], steady)
    assert found.winner is None
    assert found.left[0] == "arm-1"


def lost(*runs):
    """The same, but for runs that diverge."""
    return lambda arm, seed: math.nan if (arm, seed) in runs else steady(arm, seed)


def test_what_diverges_leaves_at_once_whatever_it_was():
    found, asked = raced(["arm1", "arm9"], lost(("arm9", 1)))
    assert found.dropped == {"arm9": "it diverged or failed"}
    assert [len(each) for each in asked] == [3, 3, 2, 2, 2, 2]
    assert found.winner == "arm1"
    nothing, asked = raced(["arm9"], lost(("arm9", 0)))
    assert (nothing.winner, len(asked)) == (None, 1)


def test_seeds_at_which_the_reference_diverged_say_nothing_of_the_others():
    found, _ = raced(["arm1", "arm2"], lost(("default", 0)))
    assert found.winner == "arm2"
    assert found.gains["arm2"] == pytest.approx(2, abs=0.1)
    assert raced(["arm1", "arm2"], lost(*(("default", seed) for seed in SEEDS)), mode="min")[0].winner is not None

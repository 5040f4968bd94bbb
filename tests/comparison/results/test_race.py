"""A race of initializations: whom it keeps, what it asks for, and what it spends."""

import math

import pytest

from comparison.results.race import MOST, RUNGS, Outcome, race

SEEDS = list(range(MOST))
WIGGLE = [0.03, -0.02, 0.05, -0.04, 0.01, -0.03]


def drive(asking, value, seconds=lambda request: 100 * request.share, share=lambda request: None):
    """Run a race; return it with everything that it asked for, stage by stage."""
    stages = []
    try:
        wanted = next(asking)
        while True:
            stages.append(wanted)
            wanted = asking.send({each: Outcome(value(each), seconds(each), share(each)) for each in wanted})
    except StopIteration as ended:
        return ended.value, stages


def gain_of(arm):
    return 0.0 if arm == "default" else float(arm.removeprefix("arm"))


def steady(request):
    """The arm's number is its gain; seeds differ much, but alike for all arms."""
    wiggle = WIGGLE[(request.seed + len(request.arm)) % 6]
    return 10 * request.seed + gain_of(request.arm) * request.share + wiggle


def test_the_best_arm_wins_and_the_worst_are_trained_least():
    arms = [f"arm{number}" for number in range(1, 21)]
    found, stages = drive(race(arms, "default", SEEDS), steady)
    assert found.winner == "arm20"
    assert {each.arm for stage in stages for each in stage if each.share == 1.0} == {
        "default",
        "arm20",
        "arm19",
        "arm18",
    }
    assert found.dropped["arm1"] == "not among the best 8 at 20% of the training"
    whole = 100 * RUNGS[-1].seeds * 21
    assert found.spent < 0.45 * whole
    assert found.spent == pytest.approx(sum(100 * share for share in furthest(stages).values()))


def furthest(stages):
    return {(each.arm, each.seed): each.share for stage in stages for each in stage}


def test_less_is_better_where_it_is():
    found, _ = drive(race(["arm-1", "arm1", "arm2"], "default", SEEDS, mode="min"), steady)
    assert found.winner == "arm-1"


def test_nothing_wins_where_nothing_looks_better_and_the_default_stays_to_the_end():
    found, stages = drive(race([f"arm-{number}" for number in range(1, 9)], "default", SEEDS), steady)
    assert found.winner is None
    assert found.arms[0] == "default"
    assert all(any(each.arm == "default" for each in stage) for stage in stages)


def test_what_diverges_leaves_at_once_whatever_it_was():
    def value(request):
        return math.nan if request.arm == "arm9" and request.seed == 1 else steady(request)

    found, stages = drive(race(["arm1", "arm9"], "default", SEEDS), value)
    assert found.dropped["arm9"] == "it diverged or failed"
    assert found.winner == "arm1"
    assert not any(each.arm == "arm9" and each.share > RUNGS[0].share for stage in stages for each in stage)


def test_a_short_budget_leaves_out_the_last_candidates_and_is_kept():
    arms = [f"arm{number}" for number in range(1, 21)]
    budget = 1000.0  # ten whole runs
    found, _ = drive(race(arms, "default", SEEDS, budget=budget), steady)
    assert found.spent <= budget
    assert found.dropped["arm20"] == "the budget did not reach it"
    assert found.waiting == [arm for arm in arms if arm not in found.reached]
    assert found.waiting == arms[len(found.reached) - 1 :]  # the order is kept
    assert found.winner is not None
    everything, _ = drive(race(arms, "default", SEEDS), steady)
    assert everything.spent > 1.5 * budget

"""A race of initializations: whom it keeps, what it asks for, and what it spends."""

import math

import numpy as np
import pytest

from comparison.results.decisions import Question, decide
from comparison.results.metric import Metric
from comparison.results.race import MOST, RUNGS, Outcome, Request, Rung, race

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


def test_where_both_points_are_one_validation_a_whole_run_costs_as_many_times_as_much():
    """Three epochs: 5 % and 20 % of the steps are both validated at a third of them."""

    def third(request):
        return math.ceil(3 * request.share) / 3

    prices = []
    asking = race(["arm1"], "default", SEEDS, budget=5000, tell=lambda state, *_: prices.append(state.cost(1.0)))
    found, _ = drive(asking, steady, lambda request: 90 * third(request), third)
    assert prices[0] == pytest.approx(90)
    assert found.cost(0.2) == pytest.approx(30)


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


def test_an_arm_far_behind_at_the_end_gets_no_further_seed_and_a_close_one_does():
    def value(request):
        gain = {"near": 4.99, "best": 5.0, "behind": 2.0}.get(request.arm, 0.0)
        return gain + WIGGLE[(request.seed * (1 + len(request.arm))) % 6]

    rungs = [Rung(1.0, 5, 1.0)]
    found, stages = drive(race(["near", "behind", "best"], "default", SEEDS, rungs=rungs), value)
    assert found.dropped["behind"].startswith("behind ")
    assert {each.arm for each in stages[-1]} == {"default", "near", "best"}
    assert {each.seed for each in stages[-1]} == {5}


def test_the_same_values_make_the_same_race():
    arms = [f"arm{number}" for number in range(1, 9)]
    one, other = (drive(race(arms, "default", SEEDS), steady) for _ in range(2))
    assert one == other


def test_the_price_of_a_run_is_measured_on_the_default_before_anything_else_is_asked_for():
    arms, paid = ["arm1", "arm2"], []
    asking = race(arms, "default", SEEDS, budget=2000.0, tell=lambda state, *_: paid.append(state.cost(1.0)))
    _, stages = drive(asking, steady, lambda request: 7 + 50 * request.share)
    first = RUNGS[0].share
    assert stages[:2] == [[Request("default", 0, first / 4)], [Request("default", 0, first)]]
    assert paid == [pytest.approx(57)]  # 7 seconds that every run has, and 50 of steps
    _, stages = drive(race(arms, "default", SEEDS), steady)
    assert {each.share for stage in stages for each in stage} == {rung.share for rung in RUNGS}  # nothing to plan


@pytest.mark.parametrize("runs", [10, 20, 40])  # whole runs of the default
@pytest.mark.parametrize("fixed", [0.0, 0.1])  # of a run's time, whatever its steps
def test_a_budget_is_spent_and_not_exceeded_while_candidates_are_left(runs, fixed):
    """Thirty candidates whose runs take 0.6 to 1.7 times as long; what the evidence takes is spent after the race."""
    for number in range(40):
        rng = np.random.default_rng([runs, number])
        slower, gains = np.exp(rng.normal(0, 0.2, 30)), rng.normal(0, 1, 30) * (np.arange(30) > 0)
        noise = rng.normal(0, 0.7, (30, MOST))

        def value(request, gains=gains, noise=noise):
            arm = int(request.arm)
            return gains[arm] * request.share + noise[arm, request.seed]

        def seconds(request, slower=slower):
            return 100 * (fixed + slower[int(request.arm)] * request.share)

        budget, names = 100.0 * runs, [str(arm) for arm in range(1, 30)]
        found, _ = drive(race(names, "0", SEEDS, budget=budget, evidence=15), value, seconds)
        shown = 15 * found.cost(1.0) if found.evidence and found.winner else 0.0
        assert found.spent + shown <= 1.1 * budget
        assert {*found.reached} == {"0", *names[: len(found.reached) - 1]}
        assert not found.waiting or found.spent + shown >= 0.8 * budget


def test_what_showing_the_winner_takes_is_left_for_it_unless_nothing_looks_better():
    arms = [f"arm{number}" for number in range(1, 30)]
    found, _ = drive(race(arms, "default", SEEDS, budget=3000.0, evidence=15), steady)
    assert found.winner is not None
    assert found.waiting
    assert 3000 - found.spent >= 15 * 100
    found, _ = drive(race([f"arm-{n}" for n in range(1, 30)], "default", SEEDS, budget=3000.0, evidence=15), steady)
    assert (found.winner, found.waiting) == (None, [])
    assert found.spent > 1500  # what is not needed for a winner goes to the others


@pytest.mark.parametrize("budget", [20, 40])  # whole runs
def test_where_no_candidate_is_better_fresh_seeds_seldom_say_that_one_is(budget):
    """Simulated as in ``benchmarks/results/find_races.md``."""
    wrong = 0
    for number in range(100):
        rng = np.random.default_rng([budget, number])
        noise, slower = rng.normal(0, 0.7, (30, MOST)), np.exp(rng.normal(0, 0.2, 30))
        asking = race([str(arm) for arm in range(1, 30)], "0", SEEDS, budget=budget, evidence=15)
        found, _ = drive(asking, lambda r, n=noise: n[int(r.arm), r.seed], lambda r, s=slower: s[int(r.arm)] * r.share)
        pairs = int((budget - found.spent) / (3 * found.cost(1.0)) + 0.1)
        if found.winner and pairs >= 5:
            question = Question(margin=0.5, most=40, horizon=40)
            wrong += decide(list(rng.normal(0, 1, pairs)), question, Metric("score")).kind == "better"
    assert wrong <= 10

"""Which of many initializations is best, at a fraction of what training all of them would take.

A race is a generator: it yields the runs whose validation values it wants next, and is sent those values. Whoever
trains them, or replays what was trained, drives it. Given the same values it asks the same, which makes it resumable.

It is successive halving (Jamieson & Talwalkar, AISTATS 2016) over steps and seeds at once: many arms are trained a
little with two seeds, the better ones longer and with more, the last few to the end, where an arm is dropped as soon as
a sequential interval of its paired difference to the leader says that it is behind. What the race finds is only the
best guess: that it is better than the reference is shown afterwards, on other seeds and the test split.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field

from comparison.results.paired import paired_values
from comparison.results.sequential import FEWEST, looking_interval


@dataclass(frozen=True)
class Request:
    """A run that is to be trained so far, if it is not yet."""

    arm: str  # a candidate
    seed: int  # of the run
    share: float  # of all its steps, 1 for the whole training


@dataclass(frozen=True)
class Outcome:
    """What a run gave."""

    value: float  # on the validation split; NaN where it failed or diverged
    seconds: float = 0.0  # that its training has taken from the beginning to there


@dataclass(frozen=True)
class Rung:
    """A stage of the race."""

    share: float  # of the steps that its runs are trained for
    seeds: int  # of each arm
    keep: float  # the part of the arms that goes on, by rank


RUNGS = (Rung(0.2, 2, 0.4), Rung(0.5, 3, 1 / 3), Rung(1.0, 4, 1.0))
MOST = 6  # seeds of the last rung, where several arms stay close
LEVEL = 0.9  # of the intervals by which arms are dropped: a race may err, its winner is looked at anew
FEWEST_ARMS = 2  # that a rung keeps beside the reference


@dataclass
class Race:
    """How far a race has come."""

    reference: str  # what the winner is to replace; it is in the race to the end
    sign: int  # 1 where more is better, −1 where less is
    arms: list[str]  # that are still in it, the reference among them, the best first after each look
    dropped: dict[str, str] = field(default_factory=dict)  # arm → why, in the order in which they left
    # arm → seed → value at the last rung that it took part in
    values: dict[str, dict[int, float]] = field(default_factory=dict)
    share: float = 0.0  # of the training that the last rung was
    reached: dict[str, float] = field(default_factory=dict)  # arm → the largest share of the training that it was given
    spent: float = 0.0  # seconds of training
    # arm → mean paired difference to the reference at its last rung, positive where it is better
    gains: dict[str, float] = field(default_factory=dict)
    seconds: dict[tuple[str, int], float] = field(default_factory=dict, repr=False)

    @property
    def winner(self) -> str | None:
        """The best arm, if it looks better than the reference."""
        best = self.arms[0]
        return None if best == self.reference or not self.gains.get(best, 0.0) > 0 else best


Asking = Generator[list[Request], Mapping[Request, Outcome], Race]


def race(
    candidates: Sequence[str],
    reference: str,
    seeds: Sequence[int],
    *,
    mode: str = "max",
    budget: float = math.inf,
    rungs: Sequence[Rung] = RUNGS,
    most: int = MOST,
) -> Asking:
    """Race candidates; see the module.

    Args:
        candidates: that may replace the reference; the budget, where it is short, leaves out the last of them.
        reference: what one has.
        seeds: for the runs, in their order; at least as many as a rung takes.
        mode: ``"max"`` where more is better, ``"min"`` where less is.
        budget: seconds of training that the race may take.
        rungs: its stages; the share and the seeds grow.
        most: seeds of the last stage, where several arms stay close.

    Yields:
        The runs that are wanted next.

    Returns:
        The race at its end, its arms in order.
    """
    arms = [reference, *(arm for arm in candidates if arm != reference)]
    state = Race(reference, 1 if mode == "max" else -1, arms)
    for place, rung in enumerate(rungs):
        yield from _reach(state, rungs[place:], seeds, budget, first=place == 0)
        _rank(state)
        kept = 1 + max(FEWEST_ARMS, math.ceil(rung.keep * (len(state.arms) - 1)))
        _keep(state, kept, f"not among the best {kept - 1} at {rung.share:.0%} of the training")
    for number in range(rungs[-1].seeds, min(most, len(seeds)) + 1):
        _drop_behind(state)
        if len(state.arms) <= FEWEST_ARMS or number == min(most, len(seeds)):
            break
        if state.spent + len(state.arms) * _cost(state) > budget:
            break
        yield from _train(state, [Request(arm, seeds[number], rungs[-1].share) for arm in state.arms])
        _rank(state)
    return state


def _reach(state: Race, rungs: Sequence[Rung], seeds: Sequence[int], budget: float, first: bool) -> Asking:
    """Bring all arms to the first of the rungs that are left; where the budget is short, as many of the best as it can.

    Enough is kept for two arms on the last rung; the rungs before it share the rest.
    """
    rung, last = rungs[0], rungs[-1]
    if first:  # what a run costs is not known before one is trained
        yield from _train(state, [Request(state.reference, seeds[0], rung.share)])
    each = rung.share * rung.seeds * _cost(state)
    if math.isfinite(budget) and each > 0:
        kept = FEWEST_ARMS * last.share * last.seeds * _cost(state) if len(rungs) > 1 else 0.0
        before = sum(seconds for (arm, _), seconds in state.seconds.items() if arm in state.arms)
        share = (budget - state.spent - kept) / max(len(rungs) - 1, 1)
        _keep(state, max(int((share + before) / each), FEWEST_ARMS), "the budget did not reach it")
    state.values = {arm: {} for arm in state.arms}
    yield from _train(state, [Request(arm, seed, rung.share) for seed in seeds[: rung.seeds] for arm in state.arms])
    state.share = rung.share


def _train(state: Race, wanted: list[Request]) -> Asking:
    """Ask for runs and take down what they gave; what failed or diverged leaves the race."""
    given = yield wanted
    for request in wanted:
        outcome, key = given[request], (request.arm, request.seed)
        state.spent += outcome.seconds - state.seconds.get(key, 0.0)
        state.seconds[key] = outcome.seconds
        state.values.setdefault(request.arm, {})[request.seed] = outcome.value
        state.share = max(state.share, request.share)
        state.reached[request.arm] = request.share
    for arm in list(state.arms):
        if arm != state.reference and any(not math.isfinite(value) for value in state.values.get(arm, {}).values()):
            state.arms.remove(arm)
            state.dropped[arm] = "it diverged or failed"


def _cost(state: Race) -> float:
    """Return the seconds of a whole run, by those so far."""
    longest = max(state.seconds.values(), default=0.0)
    return longest / state.share if state.share else longest


def _rank(state: Race) -> None:
    """Put the arms in order, and note their differences to the reference."""
    base = {seed: value for seed, value in state.values[state.reference].items() if math.isfinite(value)}
    for arm in state.arms:
        differences = paired_values(state.values[arm], base).values() if base else []
        state.gains[arm] = state.sign * math.fsum(differences) / len(differences) if base else math.inf
    state.gains[state.reference] = 0.0
    state.arms.sort(key=lambda arm: -state.gains[arm])


def _keep(state: Race, kept: int, why: str) -> None:
    """Keep the first arms, and the reference wherever it is."""
    others = [arm for arm in state.arms if arm != state.reference]
    for arm in others[kept - 1 :]:
        state.arms.remove(arm)
        state.dropped[arm] = why


def _drop_behind(state: Race) -> None:
    """Drop the arms that are behind the leader, with what the sequence of looks allows to say."""
    leader = state.arms[0]
    for arm in state.arms[1:]:
        differences = paired_values(state.values[arm], state.values[leader])
        if arm == state.reference or len(differences) < FEWEST:
            continue
        interval = looking_interval([state.sign * value for value in differences.values()], 2 * FEWEST, LEVEL)
        if interval.high < 0 and not interval.has_no_width:
            state.arms.remove(arm)
            state.dropped[arm] = f"behind {leader} after {interval.samples} whole seeds"

"""Which of many initializations is best, at a fraction of what training all of them would take.

A race is a generator: it yields the runs whose validation values it wants next, and is sent those values. Whoever
trains them, or replays what was trained, drives it. Given the same values it asks the same, which makes it resumable.

It is successive halving (Jamieson & Talwalkar, AISTATS 2016) over steps and seeds at once: many arms are trained a
little with two seeds, the better ones longer and with more, the last few to the end, where an arm is dropped as soon as
the interval of a look at its paired difference to the leader says that it is behind. What the race finds is only the
best guess: that it is better than the reference is shown afterwards, on other seeds and the test split.

Under a budget, candidates enter in their order, as many as it pays for. What a run costs is measured: the reference is
trained to two points of the first stage, the line through both is the price of any share, and later runs correct it.
A run goes on to its next validation; where that is one point for both, the line begins at zero.
Part of the budget is left for showing the winner, unless that would take most of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from comparison.results.contrasts import look_interval
from comparison.results.paired import paired_values


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
    share: float | None = None  # of its steps, where it was validated; that which was asked for when None


@dataclass(frozen=True)
class Rung:
    """A stage of the race."""

    share: float  # of the steps that its runs are trained for
    seeds: int  # of each arm
    keep: float  # the part of the arms that goes on, by rank


RUNGS = (Rung(0.2, 2, 0.4), Rung(0.5, 3, 1 / 3), Rung(1.0, 4, 1.0))
MOST = 6  # seeds of the last rung, where several arms stay close
LEAN = 2  # seeds of each rung, where the budget does not reach every candidate with more
LEVEL = 0.9  # of the intervals by which arms are dropped: a race may err, its winner is looked at anew
FEWEST_ARMS = 2  # that a rung keeps beside the reference
PROBE = 0.25  # of the first rung: the other point at which the time of a run is measured
FOR_EVIDENCE = 0.2  # of the budget, at least, that is left for showing the winner
TOO_DEAR = 0.6  # of the budget: where showing it would take more, the race has all of it


@dataclass
class Race:
    """How far a race has come."""

    reference: str  # what the winner is to replace; it is in the race to the end
    sign: int  # 1 where more is better, −1 where less is
    arms: list[str]  # that are still in it, the reference among them, the best first after each look
    budget: float = math.inf  # seconds of training, those of showing the winner among them
    evidence: float = 0.0  # whole runs that showing the winner takes; 0 where the budget cannot pay for them
    waiting: list[str] = field(default_factory=list)  # candidates that the budget has not reached, in their order
    dropped: dict[str, str] = field(default_factory=dict)  # arm → why, in the order in which they left
    # arm → seed → value at the last rung that it took part in
    values: dict[str, dict[int, float]] = field(default_factory=dict)
    reached: dict[str, float] = field(default_factory=dict)  # arm → the largest share of the training that it was given
    spent: float = 0.0  # seconds of training
    # arm → mean paired difference to the reference at its last rung, positive where it is better
    gains: dict[str, float] = field(default_factory=dict)
    trained: dict[tuple[str, int], tuple[float, float]] = field(default_factory=dict, repr=False)  # → share, seconds
    times: dict[float, list[float]] = field(default_factory=dict, repr=False)  # share → seconds of runs to there
    validated: dict[float, float] = field(default_factory=dict, repr=False)  # asked share → where it was

    @property
    def winner(self) -> str | None:
        """The best arm, if it looks better than the reference."""
        best = self.arms[0]
        return None if best == self.reference or not self.gains.get(best, 0.0) > 0 else best

    @property
    def left(self) -> float:
        """Seconds that the race may still take."""
        kept = max(self.evidence * self.cost(1.0), FOR_EVIDENCE * self.budget) if self.evidence else 0.0
        return math.inf if math.isinf(self.budget) else self.budget - self.spent - kept

    def cost(self, share: float) -> float:
        """Return the seconds of a run up to a share: their mean where any were, else on the line through the others."""
        share, mean = self.validated.get(share, share), {at: math.fsum(of) / len(of) for at, of in self.times.items()}
        if share in mean or not mean:
            return mean.get(share, 0.0)
        low, high = min(mean), max(mean)
        slope = (mean[high] - mean[low]) / (high - low) if low < high else mean[high] / high
        return mean[high] + max(slope, 0.0) * (share - high)


Asking = Generator[list[Request], Mapping[Request, Outcome], Race]
Tell = Callable[[Race, Sequence[Rung], int], None]


def race(
    candidates: Sequence[str],
    reference: str,
    seeds: Sequence[int],
    *,
    mode: str = "max",
    budget: float = math.inf,
    evidence: int = 0,
    rungs: Sequence[Rung] = RUNGS,
    most: int = MOST,
    tell: Tell = lambda *_: None,
) -> Asking:
    """Race candidates; see the module. Yield the runs that are wanted next, and return the race at its end.

    A budget of training, in seconds, that is short leaves out the last candidates; what follows the race, ``evidence``
    whole runs that show the winner, is part of it. There are at least as many seeds as a rung takes; share and seeds
    grow from rung to rung, to ``most`` seeds of the last one, where several arms stay close. ``tell`` is called before
    candidates enter, with the race, its stages, and how many arms the budget pays for.
    """
    others = [arm for arm in candidates if arm != reference]
    state = Race(reference, 1 if mode == "max" else -1, [reference], budget, evidence, others)
    if math.isfinite(budget):  # what a run costs is not known before one is trained
        for share in (PROBE * rungs[0].share, rungs[0].share):
            yield from _train(state, [Request(reference, seeds[0], share)])
        if state.evidence * state.cost(1.0) > TOO_DEAR * budget:
            state.evidence = 0
    while state.waiting:
        stages = _stages(state, rungs, seeds)
        if stages:
            yield from _heat(state, stages, seeds, most, tell)
        elif state.evidence and state.winner is None:
            state.evidence = 0  # there is nothing to show
        else:
            break
    state.dropped |= dict.fromkeys(state.waiting, "the budget did not reach it")
    return state


def _stages(state: Race, rungs: Sequence[Rung], seeds: Sequence[int]) -> Sequence[Rung]:
    """Return the stages of the next heat: those that are affordable for all that wait, else the longest for any."""
    arms = [*_leaders(state), *state.waiting]
    if _path(state, arms, rungs, seeds) <= state.left:
        return rungs
    lean = [replace(rung, seeds=min(rung.seeds, LEAN)) for rung in rungs]
    whole = state.reached.get(state.winner or "", 0.0) == rungs[-1].share
    fewest = len(lean) if whole else 1  # who was trained to the end is not replaced by who was not
    shorter = (lean[:number] for number in range(len(lean), fewest - 1, -1))
    return next((each for each in shorter if _affordable(state, arms, each, seeds) > len(_leaders(state))), [])


def _heat(state: Race, stages: Sequence[Rung], seeds: Sequence[int], most: int, tell: Tell) -> Asking:
    """Race those that wait, as many as the budget pays for, with the reference and the winner so far."""
    held, first, last = _leaders(state), stages[0], stages[-1]
    state.arms, state.values = list(held), {}
    tell(state, stages, _affordable(state, [*held, *state.waiting], stages, seeds))
    while new := _entering(state, stages, seeds):  # again where runs were cheaper than they seemed
        asked = new if state.values else [*state.arms, *new]
        state.arms, state.waiting = [*state.arms, *new], state.waiting[len(new) :]
        yield from _train(state, [Request(arm, seed, first.share) for seed in seeds[: first.seeds] for arm in asked])
    _rank(state)
    for place, (before, rung) in enumerate(pairwise(stages), start=1):
        paths = (stages[place:], stages[place : place + 1])  # the next stage alone, where all of them cost too much
        numbers = (_affordable(state, state.arms, path, seeds) for path in paths)
        number = next((number for number in numbers if number > len(held)), 0)
        kept = min(number, len(state.arms) if state.waiting else _kept(before, len(state.arms)))
        if kept <= len(held):
            state.arms.sort(key=lambda arm: arm not in held[1:])  # the winner so far stays ahead
            return state
        for arm in [arm for arm in state.arms if arm not in held][kept - len(held) :]:
            state.arms.remove(arm)
            state.dropped[arm] = f"not among the best {kept - 1} at {before.share:.0%} of the training"
        state.values = {}
        if rung is not last or math.isinf(state.left):  # else seed by seed, as far as the budget goes
            wanted = [Request(arm, seed, rung.share) for seed in seeds[: rung.seeds] for arm in state.arms]
            yield from _train(state, wanted)
            _rank(state)
    most = min(most, len(seeds))
    for number in range(len(state.values.get(state.reference, {})), most + 1):
        if number >= last.seeds:
            _drop_behind(state)
            if len(state.arms) <= FEWEST_ARMS or number == most:
                break
        stage, further = [replace(last, seeds=1)], seeds[number:]
        some = state.arms if not number else _some(state, state.arms, _affordable(state, state.arms, stage, further))
        if not some:
            break
        yield from _train(state, [Request(arm, seeds[number], last.share) for arm in some])
        _rank(state)
    return state


def _leaders(state: Race) -> list[str]:
    """Return the reference, and the winner of the heats so far."""
    return [state.reference, *filter(None, [state.winner])]


def _entering(state: Race, stages: Sequence[Rung], seeds: Sequence[int]) -> list[str]:
    """Return the candidates, in their order, that the budget pays for beside those that are in the race."""
    number = _affordable(state, [*state.arms, *state.waiting], stages, seeds)
    new = max(number - len(state.arms), 0)
    return state.waiting[: new if math.isinf(state.left) else math.ceil(new / 2)]  # half: then their price is known


def _affordable(state: Race, arms: Sequence[str], stages: Sequence[Rung], seeds: Sequence[int]) -> int:
    """Return how many of the first arms the budget takes through the stages; 0 where it does not take two."""
    paths = ((number, _path(state, _some(state, arms, number), stages, seeds)) for number in range(len(arms), 1, -1))
    return next((number for number, seconds in paths if seconds <= state.left), 0)


def _some(state: Race, arms: Sequence[str], number: int) -> list[str]:
    """Return the reference and the first of the other arms, so many in all."""
    others = [arm for arm in arms if arm != state.reference]
    return [state.reference, *others[: number - 1]] if number else []


def _path(state: Race, arms: Sequence[str], stages: Sequence[Rung], seeds: Sequence[int]) -> float:
    """Return the seconds that the stages will take, if of these arms each stage keeps its part."""
    number, first, price = len(arms), stages[0], state.cost(stages[0].share)
    had = [state.trained.get((arm, seed), (0.0, 0.0)) for arm in arms for seed in seeds[: first.seeds]]
    seconds = math.fsum(max(price - spent, 0.0) for reached, spent in had if reached < first.share)
    for before, rung in pairwise(stages):
        number = _kept(before, number)
        seconds += number * (rung.seeds * state.cost(rung.share) - before.seeds * state.cost(before.share))
    return seconds


def _kept(rung: Rung, number: int) -> int:
    """Return how many of so many arms a rung keeps, the reference among them."""
    return min(number, 1 + max(FEWEST_ARMS, math.ceil(rung.keep * (number - 1))))


def _train(state: Race, wanted: list[Request]) -> Asking:
    """Ask for runs and take down what they gave; what failed or diverged leaves the race."""
    given = yield wanted
    for request in wanted:
        outcome, key = given[request], (request.arm, request.seed)
        reached, seconds = state.trained.get(key, (0.0, 0.0))
        if reached < request.share:
            state.spent += outcome.seconds - seconds
            state.trained[key] = request.share, outcome.seconds
            at = state.validated[request.share] = request.share if outcome.share is None else outcome.share
            state.times.setdefault(at, []).append(outcome.seconds)
        state.values.setdefault(request.arm, {})[request.seed] = outcome.value
        state.reached[request.arm] = max(request.share, state.reached.get(request.arm, 0.0))
    for arm in list(state.arms):
        if arm != state.reference and any(not math.isfinite(value) for value in state.values.get(arm, {}).values()):
            state.arms.remove(arm)
            state.dropped[arm] = "it diverged or failed"
    return state


def _rank(state: Race) -> None:
    """Put the arms in order, and note their differences to the reference."""
    base = {seed: value for seed, value in state.values[state.reference].items() if math.isfinite(value)}
    for arm in state.arms:
        differences = paired_values(state.values[arm], base).values() if base else []
        state.gains[arm] = state.sign * math.fsum(differences) / len(differences) if base else math.inf
    state.gains[state.reference] = 0.0
    state.arms.sort(key=lambda arm: -state.gains[arm])


def _drop_behind(state: Race) -> None:
    """Drop the arms that are behind the leader, as far as a look at five seeds tells."""
    leader = state.arms[0]
    for arm in state.arms[1:]:
        differences = paired_values(state.values[arm], state.values[leader])
        interval = look_interval([state.sign * value for value in differences.values()], LEVEL)
        if arm != state.reference and interval.high < 0 and not interval.has_no_width:
            state.arms.remove(arm)
            state.dropped[arm] = f"behind {leader} after {interval.samples} whole seeds"

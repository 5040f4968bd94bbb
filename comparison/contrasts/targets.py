"""Runs that reach a target: how soon, and how many.

*How soon a run is as good as the baseline becomes.* The target is taken on the validation split, where curves exist:
the mean of the baseline's final values. A curve is linear between its evaluations. Before the first evaluation nothing
is known, so a run that is there at once is said to need that many steps; a run that never gets there has no number, nor
has one that diverges in the end, wherever it was before.

*How much sooner.* Runs that reach the baseline's mean are selected: of two equal arms, the one whose runs all reach it
was lucky, and looks faster in 9 to 50 % of comparisons. So an arm and the baseline are compared at a target that all
runs of both reach and that neither defines, the worst of all their final values. Then nothing is left out, and where
both are alike the ratio of a seed is as often above 1 as below. Where a run is there at its first evaluation, no ratio
is known.

*How many succeed, where results are all or nothing.* A mean over runs of which some solve a task and others do not is
the value of none of them. Counts have exact intervals (Clopper and Pearson 1934). Two arms are compared by Fisher's
exact test. McNemar's test on the pairs of a seed is exact too, but cannot reach 5 % with fewer than six seeds that
differ, whatever they say; and what the two runs of a seed share (an easy or a hard order of the data) narrows the
difference between the counts (Hoeffding 1956), so that Fisher's test errs less than it says. Simulated with 10 seeds
and fewer, it finds more at every correlation within a seed; with 20 as much, unless seeds decide nearly all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from comparison.intervals import FAMILY_LEVEL, FEWEST_FOR_INTERVAL, Interval, p_value, t_interval

Curve = Sequence[tuple[float, float]]  # (steps, value), in the order of the training
ROUNDING = 1e-6  # of a target: accuracies logged in float32 are as good as one that their mean in float64 is


@dataclass
class Reach:
    """How soon the runs of an arm reach the target."""

    steps: dict[int, float | None]  # steps by seed; None where the target is not reached
    first: frozenset[int] = frozenset()  # the seeds that are as good at their first evaluation, and perhaps before it
    # the baseline's steps / the arm's to the value that all of their runs reach, geometric mean with the t interval of
    # the logarithms; None where a run diverged or is there at its first evaluation, or nothing is paired
    speed_up: Interval | None = None
    shared: float = math.nan  # that value, as it is logged
    p_value: float | None = None  # that both are as fast, by the t-test of the logarithms; None of two seeds
    adjusted: float | None = None  # among all speed-ups of the page, by Holm's method
    is_faster: bool | None = None  # None where that is open

    @property
    def at_once(self) -> bool:
        """Whether every run is as good at its first evaluation, so that its steps say nothing."""
        return bool(self.steps) and len(self.first) == len(self.steps)


def final_mean(curves: Mapping[int, Curve]) -> float | None:
    """Return the mean of the last values of the curves that end in a number, or None without any."""
    finals = [curve[-1][1] for curve in curves.values() if curve and math.isfinite(curve[-1][1])]
    return math.fsum(finals) / len(finals) if finals else None


def steps_to(curve: Curve, target: float, mode: str = "max") -> float | None:
    """Return the steps at which a curve is first as good as a target, linearly between evaluations, or None."""
    if curve and not math.isfinite(curve[-1][1]):
        return None
    sign = -1.0 if mode == "min" else 1.0
    before: tuple[float, float] | None = None
    for steps, value in curve:
        if not math.isfinite(value):
            continue
        if sign * (value - target) >= -ROUNDING * abs(target):
            if before is None:
                return float(steps)
            share = min(1.0, (target - before[1]) / (value - before[1]))
            return before[0] + share * (steps - before[0])
        before = (steps, value)
    return None


def steps_text(steps: float) -> str:
    """Return steps or epochs for reading; below 20 a decimal counts."""
    return f"{steps:,.{int(steps < 20 and not float(steps).is_integer())}f}"


def reach(arm: Mapping[int, Curve], baseline: Mapping[int, Curve], target: float, mode: str = "max") -> Reach:
    """Return how soon an arm reaches a target, and how much sooner than the baseline."""
    steps = {seed: steps_to(curve, target, mode) for seed, curve in arm.items() if curve}
    known = Reach(steps, frozenset(seed for seed, found in steps.items() if found == arm[seed][0][0]))
    pairs = [(baseline[seed], curve) for seed, curve in arm.items() if curve and baseline.get(seed)]
    finals = [curve[-1][1] for pair in pairs for curve in pair]
    if not pairs or not all(map(math.isfinite, finals)):
        return known
    shared = min(finals) if mode == "max" else max(finals)
    logarithms = []
    for before, after in pairs:
        slow, soon = _steps_after_first(before, shared, mode), _steps_after_first(after, shared, mode)
        if slow is None or soon is None:
            return known
        logarithms.append(math.log(slow / soon))
    interval = t_interval(logarithms)
    ends = [math.inf if value > 700 else math.exp(value) for value in (interval.mean, interval.low, interval.high)]
    known.speed_up, known.shared = Interval(*ends, samples=interval.samples), shared
    if interval.samples >= FEWEST_FOR_INTERVAL:
        known.p_value = p_value(logarithms)
        known.is_faster = interval.mean > 0 if known.p_value < FAMILY_LEVEL else None
    return known


def _steps_after_first(curve: Curve, target: float, mode: str) -> float | None:
    """Return the steps to a target; None where it is reached at the first evaluation, and perhaps before it."""
    steps = steps_to(curve, target, mode)
    first = next(step for step, value in curve if math.isfinite(value))
    return None if steps == first else steps


@dataclass(frozen=True)
class Share:
    """So many of so many runs, with the exact 95 % interval of the share."""

    count: int
    runs: int
    low: float
    high: float


def share(count: int, runs: int) -> Share:
    """Return a count with the exact interval of its share, by Clopper and Pearson."""
    from scipy import stats

    interval = stats.binomtest(count, runs).proportion_ci(method="exact")
    return Share(count, runs, float(interval.low), float(interval.high))


def fisher(one: Share, other: Share) -> float:
    """Return the two-sided p-value of Fisher's exact test that two arms succeed equally often."""
    from scipy import stats

    table = [[one.count, one.runs - one.count], [other.count, other.runs - other.count]]
    return float(stats.fisher_exact(table)[1])

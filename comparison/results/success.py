"""Results that are all or nothing: how many runs succeed, whether more do than of another arm, and how soon.

A mean over runs of which some solve a task and others do not is the value of none of them. Counts have exact intervals
(Clopper and Pearson 1934). Two arms are compared by Fisher's exact test. McNemar's test on the pairs of a seed is exact
too, but cannot reach 5 % with fewer than six seeds that differ, whatever they say; and what the two runs of a seed
share (an easy or a hard order of the data) narrows the difference between the counts (Hoeffding 1956), so that Fisher's
test errs less than it says. Simulated with 10 seeds and fewer, it finds more at every correlation within a seed; with
20 as much, unless seeds decide nearly all.

Runs that do not get there are censored, not left out: times are Kaplan and Meier's 1958, medians have the interval of
Brookmeyer and Crowley 1982 on log(−log).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from comparison.results.effects import ArmResult, Effects, curves_by_seed
from comparison.results.metric import Metric
from comparison.results.multiple import LEVEL, holm
from comparison.results.records import at_point
from comparison.results.run_record import Point
from comparison.results.targets import Curve, steps_to
from structured_init.errors import StructuredInitError

if TYPE_CHECKING:
    import pandas as pd

CLEAR_GAP = 40.0  # points of accuracy between runs that succeed and runs that do not
ROUND = (0.95, 0.9, 0.99, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)  # thresholds as one names them, the usual ones first


@dataclass(frozen=True)
class Share:
    """So many of so many runs, with the exact 95 % interval of the share."""

    count: int
    runs: int
    low: float
    high: float


@dataclass(frozen=True)
class Contrast:
    """Whether an arm succeeds more or less often than another.

    Attributes:
        reference: the other arm.
        p_value: of Fisher's exact test, two-sided.
        adjusted: by Holm's method, among all arms that are compared with the baseline, or with their controls.
        is_gain: True where it succeeds more often, False where less; None where that is open.
    """

    reference: str
    p_value: float
    adjusted: float
    is_gain: bool | None


@dataclass(frozen=True)
class Times:
    """How soon the runs of an arm succeed, those that never do among them.

    Attributes:
        steps: at which the share of succeeded runs grows, in their order.
        shares: of runs that have succeeded by then.
        censored: the last steps of the runs that have not.
        median: steps by which half of the runs have succeeded; infinite where fewer do.
        low: lower end of its 95 % interval.
        high: upper end; infinite where the runs were too short, or too few, to tell.
    """

    steps: tuple[float, ...]
    shares: tuple[float, ...]
    censored: tuple[float, ...]
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class ArmSuccess:
    """How often and how soon one arm succeeds; ``times`` is None without curves."""

    name: str
    share: Share
    baseline: Contrast | None
    control: Contrast | None
    scrambled: Contrast | None
    times: Times | None


@dataclass(frozen=True)
class Successes:
    """All arms at one place of the grid.

    Attributes:
        point: the place.
        metric: what is to be reached.
        threshold: by the final value, in the unit that is shown.
        baseline: the arm that others are compared with.
        arms: those with a complete run.
    """

    point: Point
    metric: Metric
    threshold: float
    baseline: str
    arms: list[ArmSuccess]


def successes(found: Effects, threshold: float, curves: pd.DataFrame | None = None) -> Successes:
    """Count the runs whose final value is as good as a threshold; a run that diverged is none of them.

    Args:
        found: the final values.
        threshold: as the metric is logged: 0.95 of an accuracy.
        curves: as ``load_curves`` gives them; the time is that of the first value on validation that is as good.
    """
    limit, sign = found.metric.factor * threshold, -1.0 if found.metric.mode == "min" else 1.0
    shares = {
        arm.name: share(
            sum(sign * v >= sign * limit and s not in arm.diverged for s, v in arm.by_seed.items()), arm.seeds
        )
        for arm in found.arms
        if arm.no_rate is None and arm.seeds
    }
    of_validation: dict[str, dict[int, Curve]] = {}
    if curves is not None and len(curves):
        shown = at_point(curves[curves["chosen"].astype(bool)], found.point)
        of_validation = curves_by_seed(shown, found.metric.on_validation)
    arms = [
        ArmSuccess(
            name=arm.name,
            share=shares[arm.name],
            baseline=_contrast(shares, arm.name, found.baseline),
            control=_contrast(shares, arm.name, arm.control.reference if arm.control else None),
            scrambled=_contrast(shares, arm.name, arm.scrambled.reference if arm.scrambled else None),
            times=_times(of_validation.get(arm.name, {}), arm, threshold, found.metric.mode),
        )
        for arm in found.arms
        if arm.name in shares
    ]
    return Successes(found.point, found.metric, limit, found.baseline, _among_all(arms))


def check_success(threshold: float, metric: str) -> float:
    """Return a threshold that the metric can have.

    Raises:
        StructuredInitError: a share that is logged from 0 to 1 was given in percent.
    """
    if Metric(metric).factor == 100 and threshold > 1:
        raise StructuredInitError(
            f"--success {threshold:g} is more than any {metric} can be, which is logged from 0 to 1: "
            f"did you mean {min(threshold / 100, 1.0):g}?"
        )
    return threshold


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


def fewest_seeds(comparisons: int = 1) -> int:
    """Return how many seeds tell apart an arm that always succeeds from one that never does, among so many."""
    runs = 3
    while comparisons * fisher(Share(0, runs, 0, 1), Share(runs, runs, 0, 1)) >= LEVEL:
        runs += 1
    return runs


def times_to(reached: Sequence[float | None], lengths: Sequence[float]) -> Times:
    """Return Kaplan and Meier's estimate of the time to success.

    Args:
        reached: steps at which each run succeeds; None where it does not.
        lengths: the steps of each run.
    """
    import numpy as np
    from scipy import stats

    events = [length if at is None else at for at, length in zip(reached, lengths, strict=True)]
    censored = [at is None for at in reached]
    left = stats.ecdf(stats.CensoredData.right_censored(events, censored)).sf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no interval where none or all are left; NaN stands for it
        ends = left.confidence_interval(0.95, method="log-log")
    happened = sorted({at for at in reached if at is not None})
    shares = [1 - float(left.evaluate(at)) for at in happened]
    return Times(
        steps=tuple(happened),
        shares=tuple(shares),
        censored=tuple(sorted(length for at, length in zip(reached, lengths, strict=True) if at is None)),
        median=_first(happened, shares),
        low=_first(happened, np.nan_to_num([1 - ends.low.evaluate(at) for at in happened], nan=1.0)),  # none is left
        high=_first(happened, [1 - float(ends.high.evaluate(at)) for at in happened]),
    )


def all_or_nothing(found: Effects) -> float | None:
    """Return a threshold, as the metric is logged, where runs of one arm end on both sides of a gap; None elsewhere.

    The gap is the largest between the final values of all runs, and at least 40 points of an accuracy wide.
    """
    values = sorted(value for arm in found.arms for value in arm.by_seed.values())
    gaps = [(high - low, low, high) for low, high in pairwise(values)]
    width, low, high = max(gaps, default=(0.0, 0.0, 0.0))
    if found.metric.factor != 100 or width < CLEAR_GAP:
        return None
    if not any(min(arm.by_seed.values()) <= low < high <= max(arm.by_seed.values()) for arm in found.arms if arm.value):
        return None
    return next(each for each in (*ROUND, round((low + high) / 200, 2)) if low < 100 * each <= high)


def _first(steps: Sequence[float], shares: Sequence[float]) -> float:
    """Return the first steps by which half have succeeded; infinite where fewer do, or NaN says that nobody knows."""
    return next((at for at, share in zip(steps, shares, strict=True) if share >= 0.5 - 1e-12), math.inf)


def _contrast(shares: Mapping[str, Share], arm: str, reference: str | None) -> Contrast | None:
    if reference is None or reference == arm or reference not in shares:
        return None
    p = fisher(shares[arm], shares[reference])
    more = shares[arm].count * shares[reference].runs > shares[reference].count * shares[arm].runs
    return Contrast(reference, p, p, more)


def _among_all(arms: list[ArmSuccess]) -> list[ArmSuccess]:
    """Return the arms with verdicts that hold together, a family for the baseline and one for each kind of control."""
    for to in ("baseline", "control", "scrambled"):
        known: dict[str, Contrast] = {arm.name: each for arm in arms if (each := getattr(arm, to)) is not None}
        judged = {
            name: replace(known[name], adjusted=p, is_gain=known[name].is_gain if p < LEVEL else None)
            for name, p in holm({name: each.p_value for name, each in known.items()}).items()
        }
        arms = [replace(arm, **{to: judged.get(arm.name)}) for arm in arms]
    return arms


def _times(curves: Mapping[int, Curve], arm: ArmResult, threshold: float, mode: str) -> Times | None:
    complete: Collection[int] = {*arm.by_seed, *arm.diverged}
    runs = [(seed, curve) for seed, curve in curves.items() if curve and seed in complete]
    if not runs:
        return None
    # Whatever a run was before it diverged, it does not succeed.
    reached = [None if seed in arm.diverged else steps_to(curve, threshold, mode) for seed, curve in runs]
    return times_to(reached, [float(curve[-1][0]) for _, curve in runs])

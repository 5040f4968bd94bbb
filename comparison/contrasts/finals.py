"""What the arms of a comparison gave at one place of its grid: final values, steps to a target, runs that succeed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from comparison.contrasts.targets import Curve, Reach, Share, final_mean, reach, share
from comparison.intervals import Interval, Values
from comparison.runs.folder import Manifest, Point
from comparison.runs.metric import Metric
from comparison.runs.records import chosen_at

if TYPE_CHECKING:
    import pandas as pd


@dataclass(kw_only=True)
class ArmResult:
    """What one arm gave at one place of the grid."""

    name: str
    by_seed: Values  # final value by seed, in the unit that is shown; seeds that ended in no number are not among them
    diverged: tuple[int, ...]  # the seeds whose run ended without a number in the metric or in a loss
    value: Interval | None = None  # the mean of ``by_seed``; None where no seed ended in a number
    learning_rate: float | None = None  # the one chosen; None where none was to be chosen, or none could be
    reach: Reach | None = None  # steps to the target; None without curves
    share: Share | None = None  # of the runs that succeed; None where no threshold was given
    without_rate: int = 0  # seeds that each learning rate was tried with, where none could be chosen: there is no value

    @property
    def seeds(self) -> int:
        """How many seeds are complete, diverged ones among them; without a learning rate, how many were tried."""
        return self.without_rate or len(self.complete)

    @property
    def complete(self) -> set[int]:
        """The seeds that are complete, diverged ones among them."""
        return {*self.by_seed, *self.diverged}


def arms_at(
    point: Point, results: pd.DataFrame, manifest: Manifest, choices: Mapping[str, Mapping[str, Any]]
) -> list[ArmResult]:
    """Return what the arms gave, those with a complete run or without a learning rate that could be chosen.

    Args:
        point: the place of the grid.
        results: a row per complete run.
        manifest: what is compared, with the arms in the order that is shown.
        choices: of learning rates, by arm.
    """
    metric = Metric(manifest.metric, manifest.mode)
    rows = chosen_at(results, point)
    rows = rows.assign(value=metric.factor * rows.get(metric.name, math.nan), lost=rows.get("diverged", False))
    rows["lost"] |= np.isinf(rows["value"])
    logged = rows[rows["value"].notna() | rows["lost"]]  # others have not logged this metric
    found = []
    for arm in manifest.arms:
        of_arm = logged[logged["arm"] == arm].set_index("seed")
        if len(of_arm):
            by_seed = of_arm["value"][np.isfinite(of_arm["value"])].to_dict()
            rate = of_arm["learning_rate"].iloc[-1]
            result = ArmResult(name=arm, by_seed=by_seed, diverged=tuple(sorted(of_arm.index[of_arm["lost"]].tolist())))
            result.value = metric.mean(by_seed.values()) if by_seed else None
            result.learning_rate = None if math.isnan(rate) else rate
            found.append(result)
        elif arm in choices and choices[arm]["chosen"] is None:
            tried = max(map(len, choices[arm]["validation"].values()), default=0)
            found.append(ArmResult(name=arm, by_seed={}, diverged=(), without_rate=tried))
    return found


def add_reaches(
    arms: Sequence[ArmResult], curves: Mapping[str, Mapping[int, Curve]], baseline: str, mode: str
) -> float | None:
    """Add how soon complete runs reach the target, and return that, as it is logged; None without curves."""
    found: dict[str, dict[int, Curve]] = {}
    for arm in arms:
        own = {seed: curve for seed, curve in curves.get(arm.name, {}).items() if seed in arm.complete}
        for seed in own.keys() & {*arm.diverged}:  # whatever a run was before it diverged, it reaches nothing
            own[seed] = [*own[seed], (own[seed][-1][0], math.nan)]
        found[arm.name] = own
    target = final_mean(found.get(baseline, {}))
    for arm in arms:
        if target is not None and found[arm.name]:
            arm.reach = reach(found[arm.name], found[baseline], target, mode)
    return target


def curves_by_seed(curves: pd.DataFrame, metric: str) -> dict[str, dict[int, Curve]]:
    """Return arm → seed → [(steps, value)] of one metric."""
    found: dict[str, dict[int, Curve]] = {}
    for (arm, seed), rows in curves[curves["metric"] == metric].groupby(["arm", "seed"], sort=False):
        pairs = list(zip(rows["step"].astype(float), rows["value"].astype(float), strict=True))
        found.setdefault(str(arm), {})[int(seed)] = pairs
    return found


def count_arm(arm: ArmResult, threshold: float, metric: Metric) -> ArmResult:
    """Return an arm with how many of its runs are as good as a threshold, as it is logged; one that diverged is not."""
    limit, sign = metric.factor * threshold, -1.0 if metric.mode == "min" else 1.0
    good = {seed for seed, value in arm.by_seed.items() if sign * value >= sign * limit}
    return replace(arm, share=share(len(good - {*arm.diverged}), arm.seeds))

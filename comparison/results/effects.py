"""What a comparison found: each arm's final values, and its paired differences to the baseline and to its control."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from comparison.results.paired import Interval, paired_values, t_interval
from comparison.results.records import Manifest, Point, at_point, points
from comparison.results.targets import Curve, Reach, final_mean, reach

if TYPE_CHECKING:
    import pandas as pd

Values = dict[int, float]


@dataclass(frozen=True)
class Metric:
    """How a metric is shown.

    Attributes:
        name: as logged, ``"test/accuracy"``.
        mode: ``"max"`` where more is better, ``"min"`` where less is.
    """

    name: str
    mode: str = "max"

    @property
    def factor(self) -> float:
        """Logged values are multiplied by it: accuracy is logged as a fraction and shown in percent."""
        return 100.0 if "accuracy" in self.name.rpartition("/")[2] else 1.0

    @property
    def label(self) -> str:
        """The metric in words, with its unit."""
        return self.words + (" %" if self.factor == 100 else "")

    @property
    def words(self) -> str:
        """The metric in words."""
        return self.name.replace("/", " ").replace("_", " ")

    @property
    def unit(self) -> str:
        """The unit of a difference."""
        return "points" if self.factor == 100 else ""

    @property
    def on_validation(self) -> str:
        """The same metric on the validation split."""
        return f"val/{self.name.partition('/')[2]}" if self.name.startswith("test/") else self.name

    def is_gain(self, interval: Interval) -> bool | None:
        """Tell whether a difference is for the better or the worse; None where that is open.

        It is open where the interval includes zero, and where it has no width: seeds that agree to the last digit (a
        small test split has few possible values) say nothing about other seeds.
        """
        if not interval.excludes_zero or has_no_width(interval):
            return None
        return (interval.mean > 0) == (self.mode == "max")


def has_no_width(interval: Interval) -> bool:
    """Tell whether all values were equal, but for rounding."""
    return interval.half_width <= 1e-9 * max(1.0, abs(interval.mean))


@dataclass(frozen=True)
class Effect:
    """A paired difference.

    Attributes:
        reference: the arm that is subtracted.
        by_seed: difference by seed.
        interval: their t interval.
    """

    reference: str
    by_seed: Values
    interval: Interval


@dataclass(frozen=True)
class Arm:
    """What one arm gave at one place of the grid.

    Attributes:
        name: of the arm.
        by_seed: final value by seed, in the unit that is shown.
        value: their t interval.
        learning_rate: the one chosen; None where none was to be chosen.
        baseline: difference to the baseline; None for the baseline itself, or where nothing is paired.
        control: difference to the same-positions control; None without one.
        reach: steps to the target; None without curves.
    """

    name: str
    by_seed: Values
    value: Interval
    learning_rate: float | None
    baseline: Effect | None
    control: Effect | None
    reach: Reach | None


@dataclass(frozen=True)
class Effects:
    """All arms at one place of the grid.

    Attributes:
        point: the place.
        metric: what is compared.
        baseline: the arm that differences refer to.
        target: what ``Arm.reach`` refers to, in the unit that is shown; None without curves.
        arms: those with a complete run, in the order in which they were given.
    """

    point: Point
    metric: Metric
    baseline: str
    target: float | None
    arms: list[Arm]


def effects(
    results: pd.DataFrame,
    manifest: Manifest,
    controls: Mapping[str, str] | None = None,
    curves: pd.DataFrame | None = None,
) -> list[Effects]:
    """Return the effects at every place of the grid.

    Args:
        results: as ``load_results`` gives them.
        manifest: of the comparison; its ``baseline``, ``metric`` and ``mode`` are used.
        controls: arm → its same-positions control.
        curves: as ``load_curves`` gives them, for the steps to a target.
    """
    return [_effects(results, manifest, controls or {}, curves, point) for point in points(manifest)]


def curves_by_seed(curves: pd.DataFrame, metric: str, axis: str = "step") -> dict[str, dict[int, Curve]]:
    """Return arm → seed → [(axis, value)] of one metric, where the axis is known."""
    found: dict[str, dict[int, Curve]] = {}
    shown = curves[(curves["metric"] == metric) & curves[axis].notna()]
    for (arm, seed), rows in shown.groupby(["arm", "seed"], sort=False):
        pairs = list(zip(rows[axis].astype(float), rows["value"].astype(float), strict=True))
        found.setdefault(str(arm), {})[int(seed)] = pairs
    return found


def _effects(
    results: pd.DataFrame, manifest: Manifest, controls: Mapping[str, str], curves: pd.DataFrame | None, point: Point
) -> Effects:
    metric, baseline = Metric(manifest["metric"], manifest["mode"]), manifest["baseline"]
    rows = at_point(results, point)
    rows = rows[rows["chosen"].astype(bool)] if len(rows) else rows
    values: dict[str, Values] = {}
    rates: dict[str, float] = {}
    for _, row in rows.iterrows():
        value = row.get(metric.name, math.nan)
        if not math.isnan(value):
            values.setdefault(row["arm"], {})[int(row["seed"])] = metric.factor * value
            rates[row["arm"]] = row["learning_rate"]
    complete = {arm: set(of_arm) for arm, of_arm in values.items()}
    target, reaches = _reaches(curves, point, metric, baseline, complete)
    arms = [
        Arm(
            name=arm,
            by_seed=values[arm],
            value=t_interval(list(values[arm].values())),
            learning_rate=rates[arm] if manifest["learning_rates"] else None,
            baseline=_effect(values, arm, baseline),
            control=_effect(values, arm, controls.get(arm)),
            reach=reaches.get(arm),
        )
        for arm in manifest["arms"]
        if arm in values
    ]
    return Effects(point, metric, baseline, target, arms)


def _effect(values: Mapping[str, Values], arm: str, reference: str | None) -> Effect | None:
    if reference is None or reference == arm or not values[arm].keys() & values.get(reference, {}).keys():
        return None
    differences = paired_values(values[arm], values[reference])
    return Effect(reference, differences, t_interval(list(differences.values())))


def _reaches(
    curves: pd.DataFrame | None, point: Point, metric: Metric, baseline: str, complete: Mapping[str, set[int]]
) -> tuple[float | None, dict[str, Reach]]:
    """Return the target in the unit that is shown, and how soon each arm's complete runs reach it."""
    if curves is None or not len(curves):
        return None, {}
    shown = at_point(curves[curves["chosen"].astype(bool)], point)
    found = {
        arm: {seed: curve for seed, curve in of_arm.items() if seed in complete.get(arm, set())}
        for arm, of_arm in curves_by_seed(shown, metric.on_validation).items()
    }
    target = final_mean(found.get(baseline, {}))
    if target is None:
        return None, {}
    base = found[baseline]
    return metric.factor * target, {
        arm: reach(of_arm, base, target, metric.mode) for arm, of_arm in found.items() if of_arm
    }

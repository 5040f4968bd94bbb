"""What a comparison found: each arm's final values, and its paired differences to the baseline and to its control."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from comparison.results.decisions import Decision, Question, decide, question_of
from comparison.results.metric import Metric
from comparison.results.multiple import LEVEL, holm, p_value
from comparison.results.paired import FEWEST_FOR_INTERVAL, Interval, paired_values, t_interval
from comparison.results.records import Manifest, at_point, choice_name, points
from comparison.results.run_record import Point
from comparison.results.targets import Curve, Reach, final_mean, reach

if TYPE_CHECKING:
    import pandas as pd

Values = dict[int, float]


@dataclass(frozen=True)
class Effect:
    """A paired difference.

    Attributes:
        reference: the arm that is subtracted.
        by_seed: difference by seed, of the seeds in which both have a number.
        interval: their t interval; where the comparison was asked to decide, the one that is valid under its stopping.
        is_gain: whether the difference is for the better or the worse among all of its family; None where that is open,
            as it always is with two pairs.
        decision: where the comparison was asked to decide.
        unjudged: the arm that looks better has diverged in a seed, so that it is open: the seeds in which it has not
            are no fair sample of it.
        p_value: of the paired t-test, this difference alone; None where there is no such test.
        adjusted: the p-value among the differences of all arms to the baseline, or to their controls, by Holm's method.
    """

    reference: str
    by_seed: Values
    interval: Interval
    is_gain: bool | None
    decision: Decision | None = None
    unjudged: bool = False
    p_value: float | None = None
    adjusted: float | None = None


@dataclass(frozen=True)
class NoRate:
    """How the runs of an arm ended for which no learning rate could be chosen: each had a seed without a number.

    Attributes:
        seeds: that each learning rate was tried with.
        runs: of all learning rates and seeds.
        diverged: how many ended without a number.
        failed: how many did not end.
    """

    seeds: int
    runs: int
    diverged: int
    failed: int


@dataclass(frozen=True)
class ArmResult:
    """What one arm gave at one place of the grid.

    Attributes:
        name: of the arm.
        by_seed: final value by seed, in the unit that is shown; seeds that ended in no number are not among them.
        diverged: the seeds whose run ended without a number in the metric or in a loss.
        value: t interval of ``by_seed``; None where no seed ended in a number.
        learning_rate: the one chosen; None where none was to be chosen, or none could be.
        baseline: difference to the baseline; None for the baseline itself, or where nothing is paired.
        control: difference to the same-positions control; None without one.
        scrambled: difference to the same weights scrambled; None without such an arm.
        reach: steps to the target; None without curves.
        no_rate: how its runs ended, where no learning rate could be chosen for it: it then has no value.
    """

    name: str
    by_seed: Values
    diverged: tuple[int, ...]
    value: Interval | None
    learning_rate: float | None
    baseline: Effect | None
    control: Effect | None
    reach: Reach | None
    no_rate: NoRate | None = None
    scrambled: Effect | None = None

    @property
    def seeds(self) -> int:
        """How many seeds are complete, diverged ones among them; without a learning rate, how many were tried."""
        return self.no_rate.seeds if self.no_rate else len({*self.by_seed, *self.diverged})

    @property
    def differences(self) -> list[Effect]:
        """The paired differences that there are: to the baseline, to the same positions, to itself scrambled."""
        return [effect for effect in (self.baseline, self.control, self.scrambled) if effect is not None]

    @property
    def lost(self) -> int:
        """How many seeds ended in no number, so that means and differences stand on the others alone."""
        return self.seeds - len(self.by_seed)


@dataclass(frozen=True)
class Effects:
    """All arms at one place of the grid.

    Attributes:
        point: the place.
        metric: what is compared.
        baseline: the arm that differences refer to.
        target: what ``ArmResult.reach`` refers to, in the unit that is shown; None without curves.
        arms: those with a complete run, or with no learning rate that could be chosen, in the order in which they were
            given.
        question: what was to be decided; None where the comparison only describes.
    """

    point: Point
    metric: Metric
    baseline: str
    target: float | None
    arms: list[ArmResult]
    question: Question | None = None

    @property
    def at_once(self) -> bool:
        """Whether every run is at the target at its first evaluation: it is no result that training leads to."""
        known = [arm.reach for arm in self.arms if arm.reach is not None]
        return bool(known) and all(each.at_once for each in known)


def effects(
    results: pd.DataFrame,
    manifest: Manifest,
    controls: Mapping[str, str] | None = None,
    curves: pd.DataFrame | None = None,
    choices: Mapping[str, Mapping[str, Any]] | None = None,
    scrambled: Mapping[str, str] | None = None,
) -> list[Effects]:
    """Return the effects at every place of the grid.

    Args:
        results: as ``load_results`` gives them.
        manifest: of the comparison; its ``baseline``, ``metric`` and ``mode`` are used.
        controls: arm → its same-positions control.
        curves: as ``load_curves`` gives them, for the steps to a target.
        choices: as ``chosen_learning_rates`` gives them, for the arms of which no learning rate could be chosen.
        scrambled: arm → the arm that is the same initialization scrambled.
    """
    chosen = choices or {}
    return [
        _effects(
            results, manifest, controls or {}, scrambled or {}, curves, point, chosen.get(choice_name(dict(point)), {})
        )
        for point in points(manifest)
    ]


def curves_by_seed(curves: pd.DataFrame, metric: str, axis: str = "step") -> dict[str, dict[int, Curve]]:
    """Return arm → seed → [(axis, value)] of one metric, where the axis is known."""
    found: dict[str, dict[int, Curve]] = {}
    shown = curves[(curves["metric"] == metric) & curves[axis].notna()]
    for (arm, seed), rows in shown.groupby(["arm", "seed"], sort=False):
        pairs = list(zip(rows[axis].astype(float), rows["value"].astype(float), strict=True))
        found.setdefault(str(arm), {})[int(seed)] = pairs
    return found


def _effects(
    results: pd.DataFrame,
    manifest: Manifest,
    controls: Mapping[str, str],
    scrambled: Mapping[str, str],
    curves: pd.DataFrame | None,
    point: Point,
    choices: Mapping[str, Any],
) -> Effects:
    metric, baseline = Metric(manifest["metric"], manifest["mode"]), manifest["baseline"]
    question = question_of(manifest)
    to_baseline, to_control, to_scrambled = (
        question and question.of_family(size) for size in (len(manifest["arms"]) - 1, len(controls), len(scrambled))
    )
    rows = at_point(results, point)
    rows = rows[rows["chosen"].astype(bool)] if len(rows) else rows
    values: dict[str, Values] = {}
    diverged: dict[str, set[int]] = {}
    rates: dict[str, float] = {}
    for _, row in rows.iterrows():
        value, arm, seed = float(row.get(metric.name, math.nan)), row["arm"], int(row["seed"])
        has_diverged = bool(row.get("diverged", False)) or math.isinf(value)
        if math.isnan(value) and not has_diverged:
            continue  # the run has not logged this metric
        values.setdefault(arm, {}).update({seed: metric.factor * value} if math.isfinite(value) else {})
        diverged.setdefault(arm, set()).update({seed} if has_diverged else ())
        rates[arm] = row["learning_rate"]
    complete = {arm: {*of_arm, *diverged[arm]} for arm, of_arm in values.items()}
    target, reaches = _reaches(curves, point, metric, baseline, complete, diverged)
    without_rate = {arm: found for arm, choice in choices.items() if (found := _no_rate(choice)) and arm not in values}
    arms = [
        ArmResult(arm, {}, (), None, None, None, None, None, no_rate=without_rate[arm])
        if arm in without_rate
        else ArmResult(
            name=arm,
            by_seed=values[arm],
            diverged=tuple(sorted(diverged[arm])),
            value=metric.cut(t_interval(list(values[arm].values()))) if values[arm] else None,
            learning_rate=rates[arm] if manifest["learning_rates"] else None,
            baseline=_effect(metric, values, diverged, arm, baseline, to_baseline),
            control=_effect(metric, values, diverged, arm, controls.get(arm), to_control),
            reach=reaches.get(arm),
            scrambled=_effect(metric, values, diverged, arm, scrambled.get(arm), to_scrambled),
        )
        for arm in manifest["arms"]
        if arm in values or arm in without_rate
    ]
    return Effects(point, metric, baseline, target, _among_all(arms), question)


def _no_rate(choice: Mapping[str, Any]) -> NoRate | None:
    """Return how the runs of an arm ended; None where a learning rate was chosen for it."""
    values = [value for of_rate in choice["validation"].values() for value in of_rate]
    if choice["chosen"] is not None or not values:
        return None
    failed = sum(value is None for value in values)
    diverged = sum(value is not None and not math.isfinite(value) for value in values)
    return NoRate(max(map(len, choice["validation"].values())), len(values), diverged, failed)


def _effect(
    metric: Metric,
    values: Mapping[str, Values],
    diverged: Mapping[str, set[int]],
    arm: str,
    reference: str | None,
    question: Question | None,
) -> Effect | None:
    if reference is None or reference == arm or not values[arm].keys() & values.get(reference, {}).keys():
        return None
    differences = paired_values(values[arm], values[reference])
    if question is not None:
        return _decided(metric, differences, diverged, arm, reference, question)
    interval = metric.cut(t_interval(list(differences.values())), difference=True)
    is_gain = metric.is_gain(interval)
    unjudged = is_gain is not None and bool(diverged[arm if is_gain else reference])
    p = p_value(list(differences.values())) if len(differences) > 1 else None
    is_gain = None if unjudged or interval.samples < FEWEST_FOR_INTERVAL else is_gain
    return Effect(reference, differences, interval, is_gain, unjudged=unjudged, p_value=p, adjusted=p)


def _among_all(arms: list[ArmResult]) -> list[ArmResult]:
    """Return the arms with verdicts that hold together: one family per question, the baseline's and each control's."""
    for to in ("baseline", "control", "scrambled"):
        known = {arm.name: effect for arm in arms if (effect := getattr(arm, to)) is not None}
        adjusted = holm({name: effect.p_value for name, effect in known.items() if effect.p_value is not None})
        judged = {
            name: replace(known[name], adjusted=p, is_gain=known[name].is_gain if p < LEVEL else None)
            for name, p in adjusted.items()
        }
        arms = [replace(arm, **{to: judged.get(arm.name, getattr(arm, to))}) for arm in arms]
    return arms


def _decided(
    metric: Metric, by_seed: Values, diverged: Mapping[str, set[int]], arm: str, reference: str, question: Question
) -> Effect:
    """Return a difference with its decision; where a side that has diverged looks no worse, no seed can decide it."""
    found = decide(list(by_seed.values()), question, metric)
    lost = {"better": diverged[arm], "worse": diverged[reference]}.get(found.kind, diverged[arm] | diverged[reference])
    if lost:
        found = Decision("undecided", found.interval, reason="a side that looks no worse has diverged in some seeds")
    found = replace(found, interval=metric.cut(found.interval, difference=True))
    return Effect(reference, by_seed, found.interval, {"better": True, "worse": False}.get(found.kind), found)


def _reaches(
    curves: pd.DataFrame | None,
    point: Point,
    metric: Metric,
    baseline: str,
    complete: Mapping[str, set[int]],
    diverged: Mapping[str, set[int]],
) -> tuple[float | None, dict[str, Reach]]:
    """Return the target in the unit that is shown, and how soon each arm's complete runs reach it."""
    if curves is None or not len(curves):
        return None, {}
    shown = at_point(curves[curves["chosen"].astype(bool)], point)
    found = {
        arm: {
            # Whatever a run was before it diverged, it reaches nothing.
            seed: [*curve, (curve[-1][0], math.nan)] if seed in diverged[arm] else curve
            for seed, curve in of_arm.items()
            if seed in complete.get(arm, set())
        }
        for arm, of_arm in curves_by_seed(shown, metric.on_validation).items()
    }
    target = final_mean(found.get(baseline, {}))
    if target is None:
        return None, {}
    base = found[baseline]
    return metric.factor * target, {
        arm: reach(of_arm, base, target, metric.mode) for arm, of_arm in found.items() if of_arm
    }

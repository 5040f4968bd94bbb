"""What a comparison found at the places of its grid: each arm's final values, or how many of its runs succeed.

How arms differ stands in one table, :mod:`comparison.results.contrasts`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from comparison.results.contrasts import (
    BASELINE,
    IS_CONTROL,
    Contrast,
    Question,
    contrast,
    counted_contrast,
    judge_together,
    question_of,
)
from comparison.results.controls import Roles, no_competitors, roles_of
from comparison.results.folder import Manifest, Point, choice_name, points
from comparison.results.metric import Metric
from comparison.results.paired import FAMILY_LEVEL, Interval, Values, are_equal, holm
from comparison.results.records import chosen_at
from comparison.results.targets import Curve, Reach, Share, Times, final_mean, reach, share, steps_to, times_to
from structured_init.errors import StructuredInitError

if TYPE_CHECKING:
    import pandas as pd

CLEAR_GAP = 0.4  # of the whole, between runs that succeed and runs that do not
ROUND = (0.95, 0.9, 0.99, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)  # thresholds as one names them, the usual ones first


@dataclass(frozen=True)
class NoRate:
    """How the runs of an arm ended for which no learning rate could be chosen: each had a seed without a number."""

    seeds: int  # that each learning rate was tried with
    runs: int  # of all learning rates and seeds
    diverged: int  # how many ended without a number
    failed: int  # how many did not end


@dataclass(frozen=True, kw_only=True)
class ArmResult:
    """What one arm gave at one place of the grid."""

    name: str
    by_seed: Values  # final value by seed, in the unit that is shown; seeds that ended in no number are not among them
    diverged: tuple[int, ...]  # the seeds whose run ended without a number in the metric or in a loss
    is_control: bool = False  # of another arm, and no competitor of the baseline
    # of ``by_seed``; None where no seed ended in a number, without ends where results look all or nothing
    value: Interval | None = None
    learning_rate: float | None = None  # the one chosen; None where none was to be chosen, or none could be
    reach: Reach | None = None  # steps to the target; None without curves
    no_rate: NoRate | None = None  # where no learning rate could be chosen: it then has no value

    @property
    def seeds(self) -> int:
        """How many seeds are complete, diverged ones among them; without a learning rate, how many were tried."""
        return self.no_rate.seeds if self.no_rate else len({*self.by_seed, *self.diverged})

    @property
    def lost(self) -> int:
        """How many seeds ended in no number, so that means and differences stand on the others alone."""
        return self.seeds - len(self.by_seed)


@dataclass(frozen=True)
class ArmSuccess:
    """How often and how soon the runs of one arm succeed."""

    name: str
    share: Share
    times: Times | None  # None without curves
    is_control: bool = False  # see ArmResult


@dataclass(frozen=True)
class PlaceResult:
    """All arms at one place of the grid, and how they differ."""

    point: Point
    metric: Metric
    baseline: str  # the arm that the others are to replace
    # Those with a complete run, or with no learning rate that could be chosen, in the order in which they were given:
    # ArmResult, or ArmSuccess where there is a threshold.
    arms: list[Any]
    contrasts: list[Contrast] = field(default_factory=list)
    threshold: float | None = None  # what a final value has to reach to be counted, in the unit that is shown
    target: float | None = None  # what ``ArmResult.reach`` refers to, in the unit that is shown; None without curves
    question: Question | None = None  # what was to be decided; None where the comparison only describes
    family: int = 1  # how many differences are judged together, at all places of the grid
    roles: Roles = field(default_factory=dict)  # arm → its controls
    counted: str = "optimizer steps"  # what curves are over
    means: PlaceResult | None = None  # the same place by the means of its arms, where ``arms`` are of runs that succeed

    @property
    def competing(self) -> list[Contrast]:
        """The differences that are judged unless their better side diverged: without controls beside the baseline."""
        return [each for each in self.contrasts if each.reason != IS_CONTROL]

    def of_role(self, role: str) -> list[Contrast]:
        """Return the differences to references of one role, to the baseline without those of controls."""
        return [each for each in self.competing if each.role == role]

    def to_baseline(self, arm: str) -> Contrast | None:
        """Return the difference of an arm to the baseline."""
        return next((each for each in self.contrasts if each.arm == arm and each.role == BASELINE), None)

    def to_controls(self, arm: str) -> list[Contrast]:
        """Return the differences of an arm to its controls."""
        return [each for each in self.contrasts if each.arm == arm and each.role != BASELINE]

    @property
    def at_once(self) -> bool:
        """Whether every run is at the target at its first evaluation: it is no result that training leads to."""
        known = [arm.reach for arm in self.arms if arm.reach is not None]
        return bool(known) and all(each.at_once for each in known)


def find_places(
    results: pd.DataFrame,
    manifest: Manifest,
    curves: pd.DataFrame | None = None,
    choices: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[PlaceResult]:
    """Return what was found at every place of the grid, with verdicts that hold together.

    Args:
        results: a row per complete run, as :func:`~comparison.results.records.load_results` has them.
        manifest: what is compared, with the controls of each arm.
        curves: a row per logged value; no steps are counted when None.
        choices: of learning rates.
    """
    arms, baseline, roles = manifest["arms"], manifest["baseline"], roles_of(manifest)
    alone, grid, question = no_competitors(roles, baseline), points(manifest["grid"]), question_of(manifest)
    pairs = [(arm, BASELINE) for arm in arms if arm not in {*alone, baseline}]
    pairs += [(arm, control) for arm, of in roles.items() for control in of]
    question = question and question.of_family(len(pairs) * len(grid))
    found = []
    for point in grid:
        finals = _Finals.at(point, results, Metric(manifest["metric"], manifest["mode"]))
        target, reaches = finals.reaches(curves, point, baseline)
        no_rates = {arm: _no_rate(choice) for arm, choice in (choices or {}).get(choice_name(point), {}).items()}
        of_arms = []
        for arm in arms:
            values = finals.values.get(arm)
            if values is not None:
                result = ArmResult(
                    name=arm,
                    by_seed=values,
                    diverged=tuple(sorted(finals.diverged[arm])),
                    value=finals.metric.mean(values.values()) if values else None,
                    is_control=arm in alone,
                    learning_rate=finals.rates[arm] if manifest["learning_rates"] else None,
                    reach=reaches.get(arm),
                )
                of_arms.append(result)
            elif no_rates.get(arm):
                of_arms.append(ArmResult(name=arm, by_seed={}, diverged=(), no_rate=no_rates[arm]))
        contrasts = []
        for names in _pairs_at(point, [arm for arm in arms if arm in finals.values], baseline, roles):
            each = contrast(finals.values, finals.diverged, names, finals.metric, question)
            if each is not None:
                contrasts.append(_shown_alone(each, alone))
        counted = manifest.get("counted", PlaceResult.counted)
        given = {"target": target, "question": question, "roles": roles, "counted": counted}
        each = PlaceResult(point, finals.metric, baseline, of_arms, contrasts, **given)
        finite = [value for arm in of_arms for value in arm.by_seed.values()]
        if all_or_nothing(each) is not None or each.metric.looks_solved(finite):
            for place, arm in enumerate(of_arms):  # seeds that agree say nothing about those that fail now and then
                if arm.value is not None and not arm.value.has_no_width:
                    of_arms[place] = replace(arm, value=replace(arm.value, low=-math.inf, high=math.inf))
        found.append(each)
    return _judge_reaches(_judge_places(found))


def _pairs_at(point: Point, arms: Iterable[str], baseline: str, roles: Roles) -> list[tuple[Point, str, str, str]]:
    """Return place, arm, reference and role of all that is held against each other."""
    pairs = []
    for arm in arms:
        if arm != baseline:
            pairs.append((point, arm, baseline, BASELINE))
        pairs += [(point, arm, control, role) for control, role in roles.get(arm, {}).items()]
    return pairs


def _shown_alone(each: Contrast, alone: set[str]) -> Contrast:
    """Return a difference without a verdict where it is that of a control to the baseline."""
    if each.role != BASELINE or each.arm not in alone:
        return each
    return replace(each, verdict="undecided", reason=IS_CONTROL, needed=None, next_look=None)


def _judge_places(found: Sequence[PlaceResult]) -> list[PlaceResult]:
    """Return all places of a grid with verdicts that hold together."""
    together = judge_together([each for place in found for each in place.contrasts])
    size = len({(each.place, each.arm, each.reference) for each in together if each.adjusted is not None})
    return [
        replace(place, contrasts=[each for each in together if each.place == place.point], family=max(1, size))
        for place in found
    ]


def _judge_reaches(found: Sequence[PlaceResult]) -> list[PlaceResult]:
    """Return all places with speed-ups that are judged together, by Holm's method."""
    p_values = {
        (place.point, arm.name): arm.reach.p_value
        for place in found
        for arm in place.arms
        if arm.name != place.baseline and arm.reach is not None and arm.reach.p_value is not None
    }
    adjusted = holm(p_values)
    for place in found:
        for number, arm in enumerate(place.arms):
            p = adjusted.get((place.point, arm.name))
            if p is not None:
                is_faster = arm.reach.is_faster if p < FAMILY_LEVEL else None
                place.arms[number] = replace(arm, reach=replace(arm.reach, adjusted=p, is_faster=is_faster))
    return list(found)


def _no_rate(choice: Mapping[str, Any]) -> NoRate | None:
    """Return how the runs of an arm ended; None where a learning rate was chosen for it."""
    values = [value for of_rate in choice["validation"].values() for value in of_rate]
    if choice["chosen"] is not None or not values:
        return None
    failed = sum(value is None for value in values)
    diverged = sum(value is not None and not math.isfinite(value) for value in values)
    return NoRate(max(map(len, choice["validation"].values())), len(values), diverged, failed)


@dataclass(frozen=True)
class _Finals:
    """The final values of all arms at one place of the grid, in the unit that is shown."""

    metric: Metric
    values: dict[str, Values]  # arm → final value by seed, of the runs that ended in a number
    diverged: dict[str, set[int]]  # arm → seeds
    rates: dict[str, float]  # arm → its learning rate

    @classmethod
    def at(cls, point: Point, results: pd.DataFrame, metric: Metric) -> _Finals:
        """Return those of a place."""
        found = cls(metric, {}, {}, {})
        for _, row in chosen_at(results, point).iterrows():
            value, arm, seed = float(row.get(metric.name, math.nan)), row["arm"], int(row["seed"])
            has_diverged = bool(row.get("diverged", False)) or math.isinf(value)
            if math.isnan(value) and not has_diverged:
                continue  # the run has not logged this metric
            found.values.setdefault(arm, {}).update({seed: metric.factor * value} if math.isfinite(value) else {})
            found.diverged.setdefault(arm, set()).update({seed} if has_diverged else ())
            found.rates[arm] = row["learning_rate"]
        return found

    def reaches(
        self, curves: pd.DataFrame | None, point: Point, baseline: str
    ) -> tuple[float | None, dict[str, Reach]]:
        """Return the target in the unit that is shown, and how soon each arm's complete runs reach it."""
        if curves is None or not len(curves):
            return None, {}
        found = {
            arm: {
                # Whatever a run was before it diverged, it reaches nothing.
                seed: [*curve, (curve[-1][0], math.nan)] if seed in self.diverged[arm] else curve
                for seed, curve in of_arm.items()
                if seed in {*self.values.get(arm, ()), *self.diverged.get(arm, ())}
            }
            for arm, of_arm in curves_by_seed(chosen_at(curves, point), self.metric.on_validation).items()
        }
        target = final_mean(found.get(baseline, {}))
        if target is None:
            return None, {}
        soon = {arm: reach(of, found[baseline], target, self.metric.mode) for arm, of in found.items() if of}
        return self.metric.factor * target, soon


def curves_by_seed(curves: pd.DataFrame, metric: str, axis: str = "step") -> dict[str, dict[int, Curve]]:
    """Return arm → seed → [(axis, value)] of one metric, where the axis is known."""
    found: dict[str, dict[int, Curve]] = {}
    shown = curves[(curves["metric"] == metric) & curves[axis].notna()]
    for (arm, seed), rows in shown.groupby(["arm", "seed"], sort=False):
        pairs = list(zip(rows[axis].astype(float), rows["value"].astype(float), strict=True))
        found.setdefault(str(arm), {})[int(seed)] = pairs
    return found


def all_equal(found: PlaceResult) -> float | None:
    """Return the value that all final results of at least two arms share, but for rounding; None where they differ."""
    arms = [arm for arm in found.arms if arm.by_seed]
    values = [value for arm in arms for value in arm.by_seed.values()]
    if len(arms) < 2 or any(arm.diverged or arm.no_rate for arm in found.arms):
        return None
    return values[0] if are_equal(values, max(map(abs, values))) else None


def fewer_seeds(found: PlaceResult) -> dict[str, str]:
    """Return arm → ``2 of 5 seeds``, of the arms that lack seeds which others have; empty where all have the same."""
    seeds = {arm.name: {*arm.by_seed, *arm.diverged} for arm in found.arms if arm.by_seed or arm.diverged}
    every = set().union(*seeds.values())
    return {arm: f"{len(own)} of {len(every)} seeds" for arm, own in seeds.items() if own != every}


def count_successes(
    found: Sequence[PlaceResult], threshold: float, curves: pd.DataFrame | None = None
) -> list[PlaceResult]:
    """Count the runs whose final value is as good as a threshold, at all places; one that diverged is none of them."""
    return _judge_places([_successes(each, threshold, curves) for each in found])


def _successes(found: PlaceResult, threshold: float, curves: pd.DataFrame | None) -> PlaceResult:
    limit, sign = found.metric.factor * threshold, -1.0 if found.metric.mode == "min" else 1.0
    of_validation: dict[str, dict[int, Curve]] = {}
    if curves is not None and len(curves):
        of_validation = curves_by_seed(chosen_at(curves, found.point), found.metric.on_validation)
    arms = []
    for arm in found.arms:
        if arm.no_rate is None and arm.seeds:
            good = [seed for seed, value in arm.by_seed.items() if sign * value >= sign * limit]
            counted = share(len({*good} - {*arm.diverged}), arm.seeds)
            times = _times(of_validation.get(arm.name, {}), arm, threshold, found.metric.mode)
            arms.append(ArmSuccess(arm.name, counted, times, arm.is_control))
    shares = {arm.name: arm.share for arm in arms}
    alone = {arm.name for arm in arms if arm.is_control}
    contrasts = []
    for names in _pairs_at(found.point, shares, found.baseline, found.roles):
        each = counted_contrast(shares, names)
        if each is not None:
            contrasts.append(_shown_alone(each, alone))
    given = {"threshold": limit, "roles": found.roles, "counted": found.counted, "means": found}
    return PlaceResult(found.point, found.metric, found.baseline, arms, contrasts, **given)


def _times(curves: Mapping[int, Curve], arm: ArmResult, threshold: float, mode: str) -> Times | None:
    runs = [(seed, curve) for seed, curve in curves.items() if curve and seed in {*arm.by_seed, *arm.diverged}]
    if not runs:
        return None
    # Whatever a run was before it diverged, it does not succeed.
    reached = [None if seed in arm.diverged else steps_to(curve, threshold, mode) for seed, curve in runs]
    first = tuple(at for at, (_, curve) in zip(reached, runs, strict=True) if at and at == curve[0][0])
    return replace(times_to(reached, [float(curve[-1][0]) for _, curve in runs]), first=first)


def check_success(asked: float | str | None, known: float | None, metric: str) -> float | None:
    """Return the threshold that was asked for, else the known one; ``"none"`` asks for no threshold."""
    if asked is None or asked == "none":
        return known if asked is None else None
    with suppress(ValueError):
        asked = float(asked)
    if isinstance(asked, str) or not math.isfinite(asked):
        raise StructuredInitError(f"success: expected a number or 'none', got '{asked}'")
    if Metric(metric).factor == 100 and asked > 1:
        raise StructuredInitError(
            f"--success {asked:g} is more than any {metric} can be, which is logged from 0 to 1: "
            f"did you mean {min(asked / 100, 1.0):g}?"
        )
    return asked


def all_or_nothing(found: PlaceResult) -> float | None:
    """Return a threshold, as the metric is logged, where runs of one arm end on both sides of a gap; None elsewhere.

    The gap is the largest between the final values of all runs, shares, and at least 40 points wide.
    """
    values = sorted(value for arm in found.arms for value in arm.by_seed.values())
    whole = found.metric.factor if found.metric.is_share(values) else math.inf
    gaps = [(high - low, low, high) for low, high in pairwise(values)]
    width, low, high = max(gaps, default=(0.0, 0.0, 0.0))
    if width < CLEAR_GAP * whole:
        return None
    if not any(min(arm.by_seed.values()) <= low < high <= max(arm.by_seed.values()) for arm in found.arms if arm.value):
        return None
    return next(each for each in (*ROUND, round((low + high) / whole / 2, 2)) if low < whole * each <= high)

"""What a comparison found: each arm's final values, or how many of its runs succeed, and how it differs from others.

An arm is compared with the baseline, with the arm that has the same positions, and with itself scrambled. All of these
differences, at all places of a grid, are one family, whose verdicts hold together. A control that was named as one, or
added for an arm, is no competitor of the baseline: its difference to it is shown and not judged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from comparison.results.controls import SAME_POSITIONS, SCRAMBLED, named, no_competitors
from comparison.results.decisions import Decision, Question, decide, question_of
from comparison.results.folder import Manifest, Point, choice_name, points
from comparison.results.metric import Metric
from comparison.results.paired import (
    FAMILY_LEVEL,
    FEWEST_FOR_INTERVAL,
    Interval,
    are_equal,
    holm,
    p_value,
    paired_values,
    t_interval,
)
from comparison.results.records import chosen_at
from comparison.results.targets import Curve, Reach, Share, Times, final_mean, fisher, reach, share, steps_to, times_to
from structured_init.errors import StructuredInitError

if TYPE_CHECKING:
    import pandas as pd

FAMILIES = ("baseline", "control", "scrambled")  # what arms are compared with: attributes of theirs
CLEAR_GAP = 0.4  # of the whole, between runs that succeed and runs that do not
ROUND = (0.95, 0.9, 0.99, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)  # thresholds as one names them, the usual ones first

Values = dict[int, float]  # by seed


@dataclass(frozen=True)
class Contrast:
    """How an arm differs from another, among all differences that are judged."""

    reference: str  # the other arm
    p_value: float | None  # of this difference alone; None where there is no such test
    adjusted: float | None  # among all that are judged, by Holm's method; None where this one is not
    is_gain: bool | None  # True where the arm is better, False where worse; None where that is open


@dataclass(frozen=True, kw_only=True)
class Effect(Contrast):
    """A paired difference: its p-value is that of the paired t-test. With two pairs it always is open."""

    by_seed: Values  # of the seeds in which both have a number
    # Student's t; where the comparison was asked to decide, the one that is valid under its stopping
    interval: Interval
    decision: Decision | None = None  # where the comparison was asked to decide
    # The side that looks better has diverged in a seed: the seeds in which it has not are no fair sample of it.
    unjudged: bool = False


@dataclass(frozen=True)
class NoRate:
    """How the runs of an arm ended for which no learning rate could be chosen: each had a seed without a number."""

    seeds: int  # that each learning rate was tried with
    runs: int  # of all learning rates and seeds
    diverged: int  # how many ended without a number
    failed: int  # how many did not end


@dataclass(frozen=True, kw_only=True)
class ArmResult:
    """What one arm gave at one place of the grid, with its differences to others where there are any."""

    name: str
    by_seed: Values  # final value by seed, in the unit that is shown; seeds that ended in no number are not among them
    diverged: tuple[int, ...]  # the seeds whose run ended without a number in the metric or in a loss
    is_control: bool = False  # of another arm, and no competitor of the baseline
    # of ``by_seed``; None where no seed ended in a number, without ends where results look all or nothing
    value: Interval | None = None
    learning_rate: float | None = None  # the one chosen; None where none was to be chosen, or none could be
    baseline: Effect | None = None
    control: Effect | None = None
    scrambled: Effect | None = None
    reach: Reach | None = None  # steps to the target; None without curves
    no_rate: NoRate | None = None  # where no learning rate could be chosen: it then has no value

    @property
    def seeds(self) -> int:
        """How many seeds are complete, diverged ones among them; without a learning rate, how many were tried."""
        return self.no_rate.seeds if self.no_rate else len({*self.by_seed, *self.diverged})

    @property
    def differences(self) -> list[Effect]:
        """The paired differences that are judged unless their better side diverged."""
        return [effect for _, effect in judged_of(self)]

    @property
    def lost(self) -> int:
        """How many seeds ended in no number, so that means and differences stand on the others alone."""
        return self.seeds - len(self.by_seed)


@dataclass(frozen=True)
class ArmSuccess:
    """How often and how soon the runs of one arm succeed; p-values of its differences are those of Fisher's test."""

    name: str
    share: Share
    baseline: Contrast | None
    control: Contrast | None
    scrambled: Contrast | None
    times: Times | None  # None without curves
    is_control: bool = False  # see ArmResult


@dataclass(frozen=True)
class Effects:
    """All arms at one place of the grid."""

    point: Point
    metric: Metric
    baseline: str  # the arm that differences refer to
    # Those with a complete run, or with no learning rate that could be chosen, in the order in which they were given:
    # ArmResult, or ArmSuccess where there is a threshold.
    arms: list[Any]
    threshold: float | None = None  # what a final value has to reach to be counted, in the unit that is shown
    target: float | None = None  # what ``ArmResult.reach`` refers to, in the unit that is shown; None without curves
    question: Question | None = None  # what was to be decided; None where the comparison only describes
    family: int = 1  # how many differences are judged together, at all places of the grid
    named: Mapping[str, Sequence[str]] = field(default_factory=dict)  # arm → controls as the user named them
    counted: str = "optimizer steps"  # what curves are over
    means: Effects | None = None  # the same place by the means of its arms, where ``arms`` are of runs that succeed

    @property
    def same_positions(self) -> bool:
        """Whether controls that are not scrambled have the same positions: of one that a user names nobody knows."""
        return all(each.endswith((SAME_POSITIONS, SCRAMBLED)) for of in self.named.values() for each in of)

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
    """Return the effects at every place of the grid, with verdicts that hold together."""
    controls, scrambled, arms, baseline = controls or {}, scrambled or {}, manifest["arms"], manifest["baseline"]
    given, alone = named(manifest), no_competitors(manifest, scrambled)
    pairs = {(arm, baseline) for arm in arms if arm not in {*alone, baseline}}
    pairs |= {*controls.items(), *scrambled.items()}
    places, question = points(manifest["grid"]), question_of(manifest)
    question = question and question.of_family(len(pairs) * len(places))
    found = []
    for point in places:
        finals = _Finals.at(point, results, Metric(manifest["metric"], manifest["mode"]), question)
        target, reaches = finals.reaches(curves, point, baseline)
        no_rates = {arm: _no_rate(choice) for arm, choice in (choices or {}).get(choice_name(point), {}).items()}
        of_arms = [
            ArmResult(
                name=arm,
                by_seed=values,
                diverged=tuple(sorted(finals.diverged[arm])),
                value=finals.metric.mean(values.values()) if values else None,
                is_control=arm in alone,
                learning_rate=finals.rates[arm] if manifest["learning_rates"] else None,
                baseline=finals.effect(arm, baseline, judged=arm not in alone),
                control=finals.effect(arm, controls.get(arm)),
                reach=reaches.get(arm),
                scrambled=finals.effect(arm, scrambled.get(arm)),
            )
            if (values := finals.values.get(arm)) is not None
            else ArmResult(name=arm, by_seed={}, diverged=(), no_rate=no_rates[arm])
            for arm in arms
            if arm in finals.values or no_rates.get(arm)
        ]
        counted = manifest.get("counted", Effects.counted)
        each = Effects(point, finals.metric, baseline, of_arms, None, target, question, named=given, counted=counted)
        finite = [value for arm in of_arms for value in arm.by_seed.values()]
        if all_or_nothing(each) is not None or each.metric.looks_solved(finite):
            for place, arm in enumerate(of_arms):  # seeds that agree say nothing about those that fail now and then
                if arm.value is not None and not arm.value.has_no_width:
                    of_arms[place] = replace(arm, value=replace(arm.value, low=-math.inf, high=math.inf))
        found.append(each)
    return judge_together(found)


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
    question: Question | None
    values: dict[str, Values]  # arm → final value by seed, of the runs that ended in a number
    diverged: dict[str, set[int]]  # arm → seeds
    rates: dict[str, float]  # arm → its learning rate

    @classmethod
    def at(cls, point: Point, results: pd.DataFrame, metric: Metric, question: Question | None) -> _Finals:
        """Return those of a place."""
        found = cls(metric, question, {}, {}, {})
        for _, row in chosen_at(results, point).iterrows():
            value, arm, seed = float(row.get(metric.name, math.nan)), row["arm"], int(row["seed"])
            has_diverged = bool(row.get("diverged", False)) or math.isinf(value)
            if math.isnan(value) and not has_diverged:
                continue  # the run has not logged this metric
            found.values.setdefault(arm, {}).update({seed: metric.factor * value} if math.isfinite(value) else {})
            found.diverged.setdefault(arm, set()).update({seed} if has_diverged else ())
            found.rates[arm] = row["learning_rate"]
        return found

    def effect(self, arm: str, reference: str | None, judged: bool = True) -> Effect | None:
        """Return the paired difference of an arm to another; None where no seed has both."""
        values, others = self.values[arm], self.values.get(reference or "", {})
        if reference is None or reference == arm or not values.keys() & others.keys():
            return None
        by_seed = paired_values(values, others)
        differences, decision, p, unjudged = list(by_seed.values()), None, None, False
        if self.question is not None:
            decision = self._decided(arm, reference, differences)
            interval, is_gain = decision.interval, {"better": True, "worse": False}.get(decision.kind)
        else:
            interval = self.metric.cut(t_interval(differences), difference=True)
            is_gain = self.metric.is_gain(interval)
            p = p_value(differences) if len(differences) > 1 else None
            ahead = arm if (interval.mean > 0) == (self.metric.mode == "max") else reference
            unjudged = p is not None and interval.mean != 0 and bool(self.diverged[ahead])
            is_gain = None if unjudged or interval.samples < FEWEST_FOR_INTERVAL else is_gain
        if not judged:
            is_gain, decision, unjudged = None, None, False
        given = {"by_seed": by_seed, "interval": interval, "decision": decision, "unjudged": unjudged}
        return Effect(reference, p, None, is_gain, **given)

    def _decided(self, arm: str, reference: str, differences: list[float]) -> Decision:
        """Return what differences decide; where a side that has diverged looks no worse, no seed can decide it."""
        assert self.question is not None
        found = decide(differences, self.question, self.metric)
        ours, theirs = self.diverged[arm], self.diverged[reference]
        if {"better": ours, "worse": theirs}.get(found.kind, ours | theirs):
            found = Decision(
                "undecided", found.interval, reason="a side that looks no worse has diverged in some seeds"
            )
        return replace(found, interval=self.metric.cut(found.interval, difference=True))

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


def judged_of(arm: Any) -> list[tuple[str, Any]]:
    """Return what an arm is compared with, and each difference that is judged unless its better side diverged."""
    kinds = [kind for kind in FAMILIES if not (arm.is_control and kind == "baseline")]
    return [(kind, each) for kind in kinds if (each := getattr(arm, kind)) is not None]


def judge_together(found: Sequence[Effects]) -> list[Effects]:
    """Return all places of a grid with verdicts that hold together, by Holm's method; speed-ups among themselves.

    A difference that is asked for twice, to a baseline that is the control as well, counts once; one whose better side
    diverged does not count.
    """
    arms = [(place, arm) for place, each in enumerate(found) for arm in each.arms]
    of_all = {
        (place, arm.name, each.reference): each.p_value
        for place, arm in arms
        for _, each in judged_of(arm)
        if each.p_value is not None and not getattr(each, "unjudged", False)  # counts of runs have none
    }
    adjusted = holm(of_all)
    compared = [(place, arm) for place, arm in arms if arm.name != found[place].baseline]
    reaches = {(place, arm.name): arm.reach for place, arm in compared if getattr(arm, "reach", None)}
    sooner = holm({key: each.p_value for key, each in reaches.items() if each.p_value is not None})

    def together(place: int, arm: Any) -> Any:
        changes: dict[str, Any] = {}
        for kind, each in judged_of(arm):
            if (p := adjusted.get((place, arm.name, each.reference))) is not None:
                changes[kind] = replace(each, adjusted=p, is_gain=each.is_gain if p < FAMILY_LEVEL else None)
        if (p := sooner.get((place, arm.name))) is not None:
            is_faster = arm.reach.is_faster if p < FAMILY_LEVEL else None
            changes["reach"] = replace(arm.reach, adjusted=p, is_faster=is_faster)
        return replace(arm, **changes)

    size = max(1, len(adjusted))
    return [
        replace(each, arms=[together(place, arm) for arm in each.arms], family=size) for place, each in enumerate(found)
    ]


def curves_by_seed(curves: pd.DataFrame, metric: str, axis: str = "step") -> dict[str, dict[int, Curve]]:
    """Return arm → seed → [(axis, value)] of one metric, where the axis is known."""
    found: dict[str, dict[int, Curve]] = {}
    shown = curves[(curves["metric"] == metric) & curves[axis].notna()]
    for (arm, seed), rows in shown.groupby(["arm", "seed"], sort=False):
        pairs = list(zip(rows[axis].astype(float), rows["value"].astype(float), strict=True))
        found.setdefault(str(arm), {})[int(seed)] = pairs
    return found


def all_equal(found: Effects) -> float | None:
    """Return the value that all final results of at least two arms share, but for rounding; None where they differ."""
    arms = [arm for arm in found.arms if arm.by_seed]
    values = [value for arm in arms for value in arm.by_seed.values()]
    if len(arms) < 2 or any(arm.diverged or arm.no_rate for arm in found.arms):
        return None
    return values[0] if are_equal(values, max(map(abs, values))) else None


def fewer_seeds(found: Effects) -> dict[str, str]:
    """Return arm → ``2 of 5 seeds``, of the arms that lack seeds which others have; empty where all have the same."""
    seeds = {arm.name: {*arm.by_seed, *arm.diverged} for arm in found.arms if arm.by_seed or arm.diverged}
    every = set().union(*seeds.values())
    return {arm: f"{len(own)} of {len(every)} seeds" for arm, own in seeds.items() if own != every}


def successes(found: Effects, threshold: float, curves: pd.DataFrame | None = None) -> Effects:
    """Count the runs whose final value is as good as a threshold; a run that diverged is none of them.

    Verdicts hold together at this place; :func:`judge_together` makes those of all places do so.
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
        of_validation = curves_by_seed(chosen_at(curves, found.point), found.metric.on_validation)
    arms = [
        ArmSuccess(
            name=arm.name,
            share=shares[arm.name],
            baseline=_contrast(shares, arm.name, found.baseline),
            control=_contrast(shares, arm.name, arm.control.reference if arm.control else None),
            scrambled=_contrast(shares, arm.name, arm.scrambled.reference if arm.scrambled else None),
            times=_times(of_validation.get(arm.name, {}), arm, threshold, found.metric.mode),
            is_control=arm.is_control,
        )
        for arm in found.arms
        if arm.name in shares
    ]
    given = found.point, found.metric, found.baseline, arms, limit
    return judge_together([Effects(*given, named=found.named, counted=found.counted, means=found)])[0]


def _contrast(shares: Mapping[str, Share], arm: str, reference: str | None) -> Contrast | None:
    if reference is None or reference == arm or reference not in shares:
        return None
    p = fisher(shares[arm], shares[reference])
    more = shares[arm].count * shares[reference].runs > shares[reference].count * shares[arm].runs
    return Contrast(reference, p, p, more)


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


def all_or_nothing(found: Effects) -> float | None:
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

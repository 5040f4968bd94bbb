"""What a comparison found at the places of its grid: what its arms gave, and the table of how they differ."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from comparison.contrasts.contrasts import (
    BASELINE,
    DIVERGED,
    IS_CONTROL,
    Contrast,
    decide,
    describe,
    describe_counts,
    judge_together,
)
from comparison.contrasts.controls import no_competitors
from comparison.contrasts.finals import ArmResult, add_reaches, arms_at, count_arm, curves_by_seed
from comparison.intervals import FAMILY_LEVEL, holm, paired_values
from comparison.runs.folder import Manifest, Point, Question, choice_name, chosen_learning_rates
from comparison.runs.metric import Metric
from comparison.runs.records import chosen_at, load_results
from structured_init.util.errors import StructuredInitError

if TYPE_CHECKING:
    import pandas as pd

Compare = Callable[[ArmResult, ArmResult], Contrast | None]


@dataclass
class PlaceResult:
    """All arms at one place of the grid, and how they differ."""

    point: Point
    manifest: Manifest  # what is compared
    # those with a complete run, or with no learning rate that could be chosen, in the order in which they were given
    arms: list[ArmResult]
    contrasts: list[Contrast]
    threshold: float | None = None  # what a final value has to reach to be counted, in the unit that is shown
    target: float | None = None  # what ``ArmResult.reach`` refers to, in the unit that is shown; None without curves

    @property
    def metric(self) -> Metric:
        """The metric that is compared."""
        return Metric(self.manifest.metric, self.manifest.mode)

    @property
    def baseline(self) -> str:
        """The arm that the others are to replace."""
        return self.manifest.baseline

    @property
    def competing(self) -> list[Contrast]:
        """The differences that are judged unless their better side diverged: without controls beside the baseline."""
        return [each for each in self.contrasts if each.reason != IS_CONTROL]

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


def look(folder: str | os.PathLike[str], manifest: Manifest) -> list[PlaceResult]:
    """Return what the complete runs of a comparison say, at every place of the grid."""
    return find_places(load_results(folder), manifest, choices=chosen_learning_rates(folder))


def find_places(
    results: pd.DataFrame,
    manifest: Manifest,
    curves: pd.DataFrame | None = None,
    choices: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[PlaceResult]:
    """Return what was found at every place of the grid, with verdicts that hold together.

    Args:
        results: a row per complete run, as :func:`~comparison.runs.records.load_results` has them.
        manifest: what is compared, with the controls of each arm.
        curves: a row per logged value; no steps are counted when None.
        choices: of learning rates.
    """
    metric = Metric(manifest.metric, manifest.mode)
    compare = partial(_difference, metric=metric, question=_question_of_each(manifest))
    found = []
    for point in manifest.points():
        arms = arms_at(point, results, manifest, (choices or {}).get(choice_name(point), {}))
        place = PlaceResult(point, manifest, arms, _contrasts(point, arms, manifest, compare))
        if curves is not None:
            by_seed = curves_by_seed(chosen_at(curves, point), metric.on_validation)
            target = add_reaches(arms, by_seed, manifest.baseline, metric.mode)
            place.target = None if target is None else metric.factor * target
        found.append(place)
    _judge_reaches(found)
    judge_together([each for place in found for each in place.contrasts])
    return found


def count_successes(found: Sequence[PlaceResult], threshold: float) -> list[PlaceResult]:
    """Count the runs whose final value is as good as a threshold, at all places; one that diverged is none of them."""
    counted = []
    for place in found:
        arms = [count_arm(arm, threshold, place.metric) for arm in place.arms if arm.complete]
        contrasts = _contrasts(place.point, arms, place.manifest, _difference_of_counts)
        counted.append(PlaceResult(place.point, place.manifest, arms, contrasts, place.metric.factor * threshold))
    judge_together([each for place in counted for each in place.contrasts])
    return counted


def _question_of_each(manifest: Manifest) -> Question | None:
    """Return what is to be decided of each difference, so that the intervals of all of them hold together."""
    if manifest.question is None:
        return None
    proposals = {*manifest.arms} - no_competitors(manifest.controls, manifest.baseline) - {manifest.baseline}
    pairs = len(proposals) + sum(map(len, manifest.controls.values()))
    return manifest.question.of_family(pairs * len(manifest.points()))


def _contrasts(point: Point, arms: Sequence[ArmResult], manifest: Manifest, compare: Compare) -> list[Contrast]:
    """Return every arm beside the baseline and beside its controls, each judged alone."""
    known, found = {arm.name: arm for arm in arms}, []
    controls = no_competitors(manifest.controls, manifest.baseline)
    for arm in arms:
        references = [(manifest.baseline, BASELINE)] if arm.name != manifest.baseline else []
        for reference, role in [*references, *manifest.controls.get(arm.name, {}).items()]:
            each = compare(arm, known[reference]) if reference in known else None
            if each is None:
                continue
            if arm.name in controls and role == BASELINE:
                each.leave_open(IS_CONTROL)
            each.place, each.arm, each.reference, each.role = point, arm.name, reference, role
            found.append(each)
    return found


def _difference(arm: ArmResult, reference: ArmResult, metric: Metric, question: Question | None) -> Contrast | None:
    """Return the paired difference of two arms; None where no seed has both.

    It is not judged where the side that looks better has diverged in a seed: its other seeds are no fair sample of it.
    Nor are two equivalent of which one diverges.
    """
    if not arm.by_seed.keys() & reference.by_seed.keys():
        return None
    by_seed = paired_values(arm.by_seed, reference.by_seed)
    values = list(by_seed.values())
    each = describe(values, metric) if question is None else decide(values, question, metric)
    assert each.interval is not None
    ahead = arm if (each.interval.mean > 0) == (metric.mode == "max") else reference
    if (each.interval.mean and ahead.diverged) or (each.verdict == "equivalent" and arm.diverged + reference.diverged):
        each.leave_open(DIVERGED)
    each.by_seed, each.interval = by_seed, metric.cut(each.interval, difference=True)
    return each


def _difference_of_counts(arm: ArmResult, reference: ArmResult) -> Contrast:
    """Return how much more often an arm succeeds."""
    assert arm.share is not None
    assert reference.share is not None
    return describe_counts(arm.share, reference.share)


def _judge_reaches(found: Sequence[PlaceResult]) -> None:
    """Judge the speed-ups of all places together, by Holm's method."""
    others = [arm for place in found for arm in place.arms if arm.name != place.baseline]
    tested = [arm.reach for arm in others if arm.reach is not None and arm.reach.p_value is not None]
    for number, adjusted in holm({number: each.p_value for number, each in enumerate(tested)}).items():
        tested[number].adjusted = adjusted
        if adjusted >= FAMILY_LEVEL:
            tested[number].is_faster = None


def check_success(asked: float | None, known: float | None, metric: str) -> float | None:
    """Return the threshold that was asked for, else the known one; refuse one in percent."""
    if asked is None:
        return known
    if Metric(metric).factor == 100 and asked > 1:
        raise StructuredInitError(
            f"--success {asked:g} is more than any {metric} can be, which is logged from 0 to 1: "
            f"did you mean {min(asked / 100, 1.0):g}?"
        )
    return asked

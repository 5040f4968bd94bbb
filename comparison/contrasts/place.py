"""What a comparison found at the places of its grid: what its arms gave, and the table of how they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from comparison.contrasts.controls import Roles, no_competitors, roles_of
from comparison.contrasts.finals import ArmResult, arms_at, count_arm, curves_by_seed, with_reaches
from comparison.intervals import FAMILY_LEVEL, holm, paired_values
from comparison.runs.folder import Manifest, Point, Question, choice_name, points
from comparison.runs.metric import Metric
from comparison.runs.records import chosen_at
from structured_init.util.errors import StructuredInitError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class PlaceResult:
    """All arms at one place of the grid, and how they differ."""

    point: Point
    metric: Metric
    baseline: str  # the arm that the others are to replace
    # those with a complete run, or with no learning rate that could be chosen, in the order in which they were given
    arms: list[ArmResult]
    contrasts: list[Contrast] = field(default_factory=list)
    threshold: float | None = None  # what a final value has to reach to be counted, in the unit that is shown
    target: float | None = None  # what ``ArmResult.reach`` refers to, in the unit that is shown; None without curves
    question: Question | None = None  # what was to be decided; None where the comparison only describes
    family: int = 1  # how many differences are judged together, at all places of the grid
    roles: Roles = field(default_factory=dict)  # arm → its controls
    counted: str = "optimizer steps"  # what curves are over

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
    names, baseline, roles = [*manifest.arms], manifest.baseline, roles_of(manifest)
    metric, grid = Metric(manifest.metric, manifest.mode), points(manifest.grid)
    controls = no_competitors(roles, baseline)
    question = manifest.question
    if question is not None:
        pairs = len({*names} - controls - {baseline}) + sum(map(len, roles.values()))
        question = question.of_family(pairs * len(grid))
    compare = lambda arm, reference: _difference(arm, reference, metric, question)  # noqa: E731
    found = []
    for point in grid:
        arms = arms_at(point, results, names, metric, (choices or {}).get(choice_name(point), {}), controls)
        target, arms = with_reaches(arms, _curves_at(curves, point, metric), baseline, metric.mode)
        found.append(
            PlaceResult(
                point=point,
                metric=metric,
                baseline=baseline,
                arms=arms,
                contrasts=_contrasts(point, arms, baseline, roles, compare),
                target=None if target is None else metric.factor * target,
                question=question,
                roles=roles,
                counted=manifest.counted,
            )
        )
    _judge_reaches(found)
    return _judge_places(found)


def count_successes(found: Sequence[PlaceResult], threshold: float) -> list[PlaceResult]:
    """Count the runs whose final value is as good as a threshold, at all places; one that diverged is none of them."""
    counted = []
    for place in found:
        arms = [count_arm(arm, threshold, place.metric) for arm in place.arms if arm.complete]
        compare = lambda arm, reference: describe_counts(arm.share, reference.share)  # noqa: E731
        contrasts = _contrasts(place.point, arms, place.baseline, place.roles, compare)
        given = {"arms": arms, "contrasts": contrasts, "threshold": place.metric.factor * threshold}
        counted.append(replace(place, **given, question=None, target=None))
    return _judge_places(counted)


def _curves_at(curves: pd.DataFrame | None, point: Point, metric: Metric) -> dict[str, dict[int, Any]]:
    if curves is None or not len(curves):
        return {}
    return curves_by_seed(chosen_at(curves, point), metric.on_validation)


def _contrasts(
    point: Point,
    arms: Sequence[ArmResult],
    baseline: str,
    roles: Roles,
    compare: Callable[[ArmResult, ArmResult], Contrast | None],
) -> list[Contrast]:
    """Return every arm beside the baseline and beside its controls, each judged alone."""
    known, found = {arm.name: arm for arm in arms}, []
    for arm in arms:
        references = [(baseline, BASELINE)] if arm.name != baseline else []
        for reference, role in [*references, *roles.get(arm.name, {}).items()]:
            each = compare(arm, known[reference]) if reference in known else None
            if each is None:
                continue
            if arm.is_control and role == BASELINE:
                each = replace(each, verdict="undecided", reason=IS_CONTROL, next_look=None)
            found.append(replace(each, place=point, arm=arm.name, reference=reference, role=role))
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
        each = replace(each, verdict="undecided", reason=DIVERGED, next_look=None)
    return replace(each, by_seed=by_seed, interval=metric.cut(each.interval, difference=True))


def _judge_places(found: Sequence[PlaceResult]) -> list[PlaceResult]:
    """Return all places of a grid with verdicts that hold together."""
    together = judge_together([each for place in found for each in place.contrasts])
    size = len({(each.place, each.arm, each.reference) for each in together if each.adjusted is not None})
    return [
        replace(place, contrasts=[each for each in together if each.place == place.point], family=max(1, size))
        for place in found
    ]


def _judge_reaches(found: Sequence[PlaceResult]) -> None:
    """Judge the speed-ups of all places together, by Holm's method."""
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

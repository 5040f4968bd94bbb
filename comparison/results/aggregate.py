"""What a grid says as a whole: interquartile mean, probability of improvement and performance profile of every arm.

Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (2108.13264): the places of
the grid are their tasks, the seeds their runs. Intervals are percentile bootstraps stratified by place; seeds are drawn
for all arms at once, so that runs stay paired.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from comparison.results.folder import Point
from comparison.results.metric import Metric
from comparison.results.paired import Interval, holm, p_value, paired_values, t_interval
from comparison.results.place import PlaceResult

RESAMPLES = 2000
LEVEL = 0.95
PLACES = 101  # of a profile

Scores = list[np.ndarray]  # (seeds,) per place of the grid


@dataclass(frozen=True)
class ArmAggregate:
    """One arm over the whole grid."""

    name: str  # of the arm
    mean: Interval  # interquartile mean of all runs of all places; ``samples`` is their number
    # probability that a run is better than one of the baseline at a place of the grid drawn at random; None for
    # the baseline
    improvement: Interval | None
    profile: np.ndarray  # share of runs that are as good as each of ``Aggregate.thresholds``
    low: np.ndarray  # lower end of its pointwise interval
    high: np.ndarray  # upper end


class Crossing(NamedTuple):
    """How much an arm's difference to the baseline changes between the two places where that is the least likely."""

    points: tuple[Point, Point]
    differences: tuple[float, float]  # means at these places
    change: Interval  # from the first to the second, paired by seed
    p: float  # that nothing changes, adjusted for all arms and pairs of places (Holm)
    p_of_odds: float | None  # the least of log-odds, which no end at 0 or 100 % squeezes; None where there are none


@dataclass(frozen=True)
class Aggregate:
    """All arms over the whole grid."""

    metric: Metric  # what is compared
    baseline: str  # the arm that others are compared with
    places: int  # of the grid at which all arms have a number in a seed that they share
    without: dict[Point, list[str]]  # the other places → arms without a number there; empty where no seed is shared
    thresholds: np.ndarray  # from the worst value of any run to the best
    seeds: list[int]  # how many such seeds each of ``places`` has
    lost: int  # runs at ``places`` in other seeds, those that diverged among them
    arms: list[ArmAggregate]  # in their order
    between_arms: Interval  # how far apart the means of arms over all places are
    between_places: Interval  # how far apart the means of places over all arms are
    interaction: Interval  # the most that an arm's mean at a place is off the sum of both
    # by arm, of the places at which neither it nor the baseline diverged; empty without the baseline
    interacting: dict[str, Crossing]

    @property
    def fewest(self) -> int:
        """Seeds of an arm at a place."""
        return min(self.seeds)


def aggregate(found: Sequence[PlaceResult]) -> Aggregate | None:
    """Return what all places of a grid say together; None with fewer than two at which all arms have a run."""
    names = [arm.name for arm in max(found, key=lambda each: len(each.arms)).arms] if found else []
    if len(names) < 2:
        return None
    finals = {each.point: {arm.name: arm.by_seed for arm in each.arms if arm.by_seed} for each in found}
    shared = {p: sorted(set.intersection(*(set(of.get(name, ())) for name in names))) for p, of in finals.items()}
    without = {p: [name for name in names if name not in finals[p]] for p, own in shared.items() if not own}
    places, seeds = [finals[p] for p, own in shared.items() if own], [own for own in shared.values() if own]
    if len(places) < 2:
        return None
    kept = [each for each in found if shared[each.point]]
    lost = sum(arm.seeds - len(shared[each.point]) for each in kept for arm in each.arms)
    scores = {
        name: [np.array([place[name][s] for s in of]) for place, of in zip(places, seeds, strict=True)]
        for name in names
    }
    metric, baseline = found[0].metric, found[0].baseline
    every = np.concatenate([np.concatenate(of_arm) for of_arm in scores.values()])
    thresholds = np.linspace(every.min(), every.max(), PLACES)
    sign = -1.0 if metric.mode == "min" else 1.0
    rng = np.random.default_rng(0)
    drawn = [rng.integers(len(of), size=(RESAMPLES, len(of))) for of in seeds]
    arms = []
    for name in names:
        profile, low, high = _resampled(scores[name], drawn, lambda each: profile_of(each, thresholds, sign))
        mean = Interval(*map(float, _resampled(scores[name], drawn, interquartile_mean)), samples=sum(map(len, seeds)))
        improvement = None
        if name != baseline and baseline in scores:
            pairs = [np.stack(pair, -1) for pair in zip(scores[name], scores[baseline], strict=True)]
            ends = _resampled(pairs, drawn, lambda each: improvement_of(each, sign))
            improvement = Interval(*map(float, ends), samples=len(places))
        arms.append(ArmAggregate(name, mean, improvement, profile, low, high))
    tables = [np.stack(of_place, -1) for of_place in zip(*scores.values(), strict=True)]
    ranges = _resampled(tables, drawn, lambda each: ranges_of(np.stack([place.mean(-2) for place in each], -1)))
    parts = (Interval(*map(float, ends), samples=len(places)) for ends in zip(*ranges, strict=True))
    steady = {each.point: {arm.name: arm.by_seed for arm in each.arms if not arm.diverged} for each in kept}
    crossing = interactions(steady, baseline, metric.factor if metric.is_share(every) else None)
    counts = [*map(len, seeds)]
    return Aggregate(metric, baseline, len(places), without, thresholds, counts, lost, arms, *parts, crossing)


def interactions(
    places: Mapping[Point, Mapping[str, Mapping[int, float]]], baseline: str, whole: float | None = None
) -> dict[str, Crossing]:
    """Return how much each arm's difference to the baseline changes between places.

    Of each arm it is the pair of places with the least p by Student's t-test of differences of differences, paired by
    seed. ``places`` has arm → final value by seed of each; ``whole`` is given for shares, and is what they are of.
    """
    odds = {}
    if whole is not None and all(0 < v < whole for of in places.values() for arm in of.values() for v in arm.values()):
        logit = lambda value: math.log(value / (whole - value))  # noqa: E731
        odds = {
            point: {arm: {s: logit(v) for s, v in by.items()} for arm, by in of.items()} for point, of in places.items()
        }
    changes = _changes(places, baseline)
    raw = {key: p_value(values) for key, (values, _) in changes.items()}
    adjusted, of_odds = holm(raw), holm({key: p_value(values) for key, (values, _) in _changes(odds, baseline).items()})
    found: dict[str, Crossing] = {}
    for key in sorted(raw, key=raw.__getitem__):
        values, means = changes[key]
        least = min((p for (arm, _), p in of_odds.items() if arm == key[0]), default=None)
        found.setdefault(key[0], Crossing(key[1], means, t_interval(values), adjusted[key], least))
    return found


def _changes(
    places: Mapping[Point, Mapping[str, Mapping[int, float]]], baseline: str
) -> dict[tuple[str, tuple[Point, Point]], tuple[list[float], tuple[float, float]]]:
    """Return (arm, two places) → by how much its difference to the baseline changes, by seed, and its two means."""
    found = {}
    for arm in {name: None for of in places.values() for name in of if name != baseline}:
        for pair in itertools.combinations([point for point, of in places.items() if {arm, baseline} <= of.keys()], 2):
            one, other = (paired_values(places[point][arm], places[point][baseline]) for point in pair)
            if common := sorted(one.keys() & other.keys()):
                means = tuple(math.fsum(each[seed] for seed in common) / len(common) for each in (one, other))
                found[arm, pair] = ([other[seed] - one[seed] for seed in common], means)
    return found


def ranges_of(means: np.ndarray) -> np.ndarray:
    """Return how far arms and places lie apart, two ranges of means, and the largest deviation of a cell from both.

    (…, arms, places) → (…, 3), none of them negative; noise in the means alone makes each larger than zero.
    """
    of_arms, of_places = means.mean(-1, keepdims=True), means.mean(-2, keepdims=True)
    off = means - of_arms - of_places + means.mean((-2, -1), keepdims=True)
    return np.stack([np.ptp(of_arms, axis=(-2, -1)), np.ptp(of_places, axis=(-2, -1)), np.abs(off).max((-2, -1))], -1)


def interquartile_mean(scores: Scores) -> np.ndarray:
    """Return the mean of the middle half of all runs, robust and steadier than a median: (…, seeds) per place → (…)."""
    from scipy import stats

    return np.asarray(stats.trim_mean(np.concatenate(scores, axis=-1), 0.25, axis=-1))


def improvement_of(pairs: Sequence[np.ndarray], sign: float = 1.0) -> np.ndarray:
    """Return the probability that a run is better than one of another arm at the same place, a tie counting one half.

    It is Mann and Whitney's U over the product of the numbers of runs, averaged over places: (…, seeds, 2) per place,
    the other arm last → (…). ``sign`` is −1 where less is better.
    """
    each = []
    for place in pairs:
        difference = sign * (place[..., :, None, 0] - place[..., None, :, 1])
        each.append(((difference > 0) + 0.5 * (difference == 0)).mean((-1, -2)))
    return np.mean(each, axis=0)


def profile_of(scores: Scores, thresholds: np.ndarray, sign: float = 1.0) -> np.ndarray:
    """Return the share of runs as good as each of T thresholds, averaged over places: (…, seeds) per place → (…, T).

    ``sign`` is −1 where less is better.
    """
    reached = [(sign * place[..., None] >= sign * thresholds).mean(-2) for place in scores]
    return np.mean(reached, axis=0)


def _resampled(
    scores: Sequence[np.ndarray], drawn: Sequence[np.ndarray], statistic: Callable[[list[np.ndarray]], np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a statistic with the ends of its interval: seeds are drawn again at every place of the grid."""
    again = statistic([place[rows] for place, rows in zip(scores, drawn, strict=True)])
    low, high = np.quantile(again, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return statistic(list(scores)), low, high

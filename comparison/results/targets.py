"""Steps to a target: how soon a run is as good as the baseline becomes.

The target is taken on the validation split, where curves exist: the mean of the baseline's final values. A curve is
linear between its evaluations. Before the first evaluation nothing is known, so a run that is there at once is said to
need that many steps; a run that never gets there has no number, nor has one that diverges in the end, wherever it was
before. Steps are paired within a seed as their ratio.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from comparison.results.paired import Interval, t_interval

Curve = Sequence[tuple[float, float]]  # (steps, value), in the order of the training


@dataclass(frozen=True)
class Reach:
    """How soon the runs of an arm reach the target.

    Attributes:
        steps: steps by seed; None where the target is not reached.
        speed_up: the baseline's steps / the arm's, geometric mean with the t interval of the logarithms; None where a
            run of the arm does not reach the target, or nothing is paired.
        bounds: of how many pairs the ratio is a lower bound, since the baseline's run does not reach the target.
        at_once: whether every run is as good at its first evaluation, so that its steps say nothing.
    """

    steps: dict[int, float | None]
    speed_up: Interval | None
    bounds: int
    at_once: bool = False

    @property
    def reached(self) -> dict[int, float]:
        """Steps of the seeds that reach the target."""
        return {seed: steps for seed, steps in self.steps.items() if steps is not None}


def final_mean(curves: Mapping[int, Curve]) -> float | None:
    """Return the mean of the last values of the curves that end in a number, or None without any."""
    finals = [curve[-1][1] for curve in curves.values() if curve and math.isfinite(curve[-1][1])]
    return math.fsum(finals) / len(finals) if finals else None


def steps_to(curve: Curve, target: float, mode: str = "max") -> float | None:
    """Return the steps at which a curve is first as good as a target, linearly between evaluations, or None.

    Args:
        curve: (steps, value) of every evaluation; values that are no number are passed over, and a curve that ends in
            one has diverged and reaches nothing.
        target: value to be reached.
        mode: ``"max"`` where more is better, ``"min"`` where less is.
    """
    if curve and not math.isfinite(curve[-1][1]):
        return None
    sign = -1.0 if mode == "min" else 1.0
    before: tuple[float, float] | None = None
    for steps, value in curve:
        if not math.isfinite(value):
            continue
        if sign * value >= sign * target:
            if before is None:
                return float(steps)
            share = (target - before[1]) / (value - before[1])
            return before[0] + share * (steps - before[0])
        before = (steps, value)
    return None


def reach(arm: Mapping[int, Curve], baseline: Mapping[int, Curve], target: float, mode: str = "max") -> Reach:
    """Return how soon an arm reaches a target, and how much sooner than the baseline.

    Args:
        arm: curve by seed.
        baseline: curve by seed of the baseline.
        target: value to be reached.
        mode: as in ``steps_to``.
    """
    steps = {seed: steps_to(curve, target, mode) for seed, curve in arm.items() if curve}
    at_once = bool(steps) and all(found == arm[seed][0][0] for seed, found in steps.items())
    logarithms, bounds = [], 0
    for seed, own in steps.items():
        if seed not in baseline or not baseline[seed] or not own:
            continue
        others = steps_to(baseline[seed], target, mode)
        if others is None:  # it would take longer than the run was
            others, bounds = float(baseline[seed][-1][0]), bounds + 1
        logarithms.append(math.log(others / own))
    if not logarithms or None in steps.values():
        return Reach(steps, None, bounds, at_once)
    interval = t_interval(logarithms)
    ends = [math.inf if value > 700 else math.exp(value) for value in (interval.mean, interval.low, interval.high)]
    return Reach(steps, Interval(*ends, samples=interval.samples), bounds, at_once)

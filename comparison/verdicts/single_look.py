"""Two tests that pair nothing: runs beside a fixed target, and two arms that have no seed in common.

They hold for one look at runs whose number was settled before it; whoever adds runs until a test is passed passes it by
luck. Records of KellerJordan/modded-nanogpt are judged like that: is the mean loss below 3.28 at p < 0.01?
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from comparison.intervals import are_equal, holm
from comparison.runs.metric import Metric
from comparison.tables import number, significant
from structured_init.util.errors import StructuredInitError

LEVEL = 0.01  # of all arms together, by Holm's method


@dataclass(frozen=True)
class Finding:
    """What one test says of one arm."""

    arm: str
    mean: float  # in the unit that is shown
    runs: int
    p: float  # one-sided, adjusted for the number of arms
    is_better: bool  # whether p is below 0.01
    text: str


def beside_target(values: Mapping[str, Sequence[float]], target: float, metric: Metric) -> list[Finding]:
    """Return of each arm whether its mean is better than a fixed number, by Student's one-sample test, one-sided.

    Args:
        values: arm → final value of each run, in the unit of ``target``.
        target: the number, known without these runs.
        metric: whose ``mode`` says what is better.

    Raises:
        StructuredInitError: an arm has fewer than two runs, a run without a number, or runs that are all equal.
    """
    from scipy import stats

    side = "greater" if metric.mode == "max" else "less"
    p = {}
    for arm, runs in values.items():
        _check_runs(arm, runs)
        p[arm] = float(stats.ttest_1samp(runs, target, alternative=side).pvalue)
    return _findings(values, p, f"{target:g}", metric, "Student's one-sample test")


def beside_baseline(values: Mapping[str, Sequence[float]], baseline: str, metric: Metric) -> list[Finding]:
    """Return of each arm whether its mean is better than the baseline's, by Welch's test, one-sided.

    Arguments and errors as for :func:`beside_target`.
    """
    from scipy import stats

    side = "greater" if metric.mode == "max" else "less"
    theirs = values[baseline]
    _check_runs(baseline, theirs)
    others = {arm: runs for arm, runs in values.items() if arm != baseline}
    p = {}
    for arm, runs in others.items():
        _check_runs(arm, runs)
        p[arm] = float(stats.ttest_ind(runs, theirs, equal_var=False, alternative=side).pvalue)
    mean = math.fsum(theirs) / len(theirs)
    return _findings(
        others, p, f"that of {baseline}, {mean:.6g} of {len(theirs)} runs", metric, "Welch's test, unpaired"
    )


def _check_runs(arm: str, runs: Sequence[float]) -> None:
    if len(runs) < 2 or not all(map(math.isfinite, runs)):
        raise StructuredInitError(f"'{arm}' has {len(runs)} runs: a test needs two or more, each with a number")
    if are_equal(runs, max(map(abs, runs))):
        raise StructuredInitError(f"all runs of '{arm}' agree to the last digit, which says nothing about others")


def _findings(
    values: Mapping[str, Sequence[float]], p: Mapping[str, float], beside: str, metric: Metric, test: str
) -> list[Finding]:
    found = []
    for arm, adjusted in holm(p).items():
        runs = values[arm]
        mean = math.fsum(runs) / len(runs)
        spread = max(runs) - min(runs)
        better = adjusted < LEVEL
        side = "above" if metric.mode == "max" else "below"
        shown = f"mean {number(mean, significant(spread, 3))} is {'' if better else 'not shown to be '}{side} {beside}"
        text = f"{'keep' if better else 'discard'} {arm}: {shown}, p = {adjusted:.2g} ({len(runs)} runs, {test})"
        found.append(Finding(arm, mean, len(runs), adjusted, better, text))
    return found

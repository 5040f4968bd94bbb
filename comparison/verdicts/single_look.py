"""Two tests that pair nothing: runs beside a fixed target, and two arms that have no seed in common.

They hold for one look at runs whose number was settled before it; whoever adds runs until a test is passed passes it by
luck. Records of KellerJordan/modded-nanogpt are judged like that: is the mean loss below 3.28 at p < 0.01?
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from comparison.intervals import are_equal, holm
from comparison.runs.metric import Metric
from comparison.tables import number, significant
from structured_init.util.errors import StructuredInitError, nearest

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


def look_once(values: Mapping[str, Sequence[float]], beside: float | str, metric: Metric) -> list[Finding]:
    """Return of each arm whether its mean is better than a number or than that of a baseline, one-sided.

    Args:
        values: arm → final value of each run, in the unit that is shown.
        beside: a number, known without these runs, for Student's one-sample test; or an arm, for Welch's test.
        metric: whose ``mode`` says what is better.

    Raises:
        StructuredInitError: an arm has fewer than two runs, a run without a number, or runs that are all equal.
    """
    from scipy import stats

    if isinstance(beside, str) and beside not in values:
        raise StructuredInitError(f"there is no run of the baseline '{beside}': {nearest(beside, values)}")
    for arm, runs in values.items():
        if len(runs) < 2 or not all(map(math.isfinite, runs)):
            raise StructuredInitError(f"'{arm}' has {len(runs)} runs: a test needs two or more, each with a number")
        if are_equal(runs, max(map(abs, runs))):
            raise StructuredInitError(f"all runs of '{arm}' agree to the last digit, which says nothing about others")
    side = "greater" if metric.mode == "max" else "less"
    if isinstance(beside, str):
        theirs = values[beside]
        target = f"that of {beside}, {math.fsum(theirs) / len(theirs):.6g} of {len(theirs)} runs"
        test, ask = "Welch's test, unpaired", partial(stats.ttest_ind, b=theirs, equal_var=False, alternative=side)
    else:
        target = f"{beside:g}"
        test, ask = "Student's one-sample test", partial(stats.ttest_1samp, popmean=beside, alternative=side)
    p = {arm: float(ask(runs).pvalue) for arm, runs in values.items() if arm != beside}
    found = []
    for arm, adjusted in holm(p).items():
        runs, better = values[arm], adjusted < LEVEL
        mean = math.fsum(runs) / len(runs)
        shown = f"{'' if better else 'not shown to be '}{'above' if metric.mode == 'max' else 'below'} {target}"
        digits = significant(max(runs) - min(runs), 3)
        text = f"{'keep' if better else 'discard'} {arm}: mean {number(mean, digits)} is {shown}, p = {adjusted:.2g}"
        found.append(Finding(arm, mean, len(runs), adjusted, better, f"{text} ({len(runs)} runs, {test})"))
    return found

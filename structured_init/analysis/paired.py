"""Comparing starts honestly: differences within a seed, with a t interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from structured_init.errors import StructuredInitError


@dataclass(frozen=True)
class Interval:
    """A mean with the half-width of its confidence interval.

    Attributes:
        mean: the sample mean.
        half_width: half the width of the interval; infinite with one sample.
        samples: how many values (seeds) it stands on.
    """

    mean: float
    half_width: float
    samples: int

    def __str__(self) -> str:
        width = "" if math.isinf(self.half_width) else f" ± {self.half_width:.1f}"
        return f"{self.mean:.1f}{width}"

    @property
    def excludes_zero(self) -> bool:
        """Whether zero lies outside the interval."""
        return abs(self.mean) > self.half_width


def t_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Return the mean and Student's t interval of a few values.

    A bootstrap is not offered: at n = 3 its nominal 95 % percentile interval covers the truth 74 % of the time, and at
    n = 5 82 %, while this one holds for normal errors at every n ≥ 2.

    Args:
        values: at least one; with one the half-width is infinite.
        level: confidence level.
    """
    from scipy import stats

    n = len(values)
    if n == 0:
        raise StructuredInitError("an interval needs at least one value")
    mean = math.fsum(values) / n
    if n == 1:
        return Interval(mean, math.inf, 1)
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    quantile = float(stats.t.ppf(0.5 + level / 2, n - 1))
    return Interval(mean, quantile * math.sqrt(variance / n), n)


def paired_difference(arm: Mapping[int, float], baseline: Mapping[int, float], level: float = 0.95) -> Interval:
    """Return the interval of arm − baseline over the seeds that both have.

    Args:
        arm: final value by seed.
        baseline: final value by seed, of runs that share everything but the start.
        level: confidence level.

    Raises:
        StructuredInitError: the two have no seed in common.
    """
    seeds = sorted(set(arm) & set(baseline))
    if not seeds:
        raise StructuredInitError("the two arms have no seed in common, so nothing is paired")
    return t_interval([arm[seed] - baseline[seed] for seed in seeds], level)


def paired_table(results: Mapping[str, Mapping[int, float]], baseline: str, control: str | None = None) -> str:
    """Return a Markdown table: each arm's mean, and its paired differences to a baseline and to a control.

    Args:
        results: final value (in percent) by arm and seed.
        baseline: the arm that differences refer to.
        control: a second arm for differences, such as the one with the same positions.
    """
    references = [name for name in (baseline, control) if name is not None and name in results]
    header = ["start", "seeds", "accuracy %", *(f"− {name} (paired)" for name in references)]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for arm, values in results.items():
        cells = [arm, str(len(values)), str(t_interval(list(values.values())))]
        cells += ["" if name == arm else _signed(paired_difference(values, results[name])) for name in references]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _signed(interval: Interval) -> str:
    return str(interval) if interval.mean < 0 else f"+{interval}"

"""Paired differences within a seed: intervals that cover the truth as often as they say, and p-values of a family.

Many differences at once are judged by Holm's step-down method on paired t-tests: verdicts on a whole family are wrong
in 5 % of comparisons. It needs neither equal spreads nor a correlation between arms, of which three seeds can tell
nothing; ``benchmarks/results/many_arms.md`` shows what Dunnett's test and the largest t of an estimated correlation do
instead.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import TypeVar

from comparison.tables import number, significant
from structured_init.util.errors import StructuredInitError

ROUNDING = 1e-12  # relative: doubles are good to 1e-16, and logged values were added up
FEWEST_FOR_INTERVAL = 3  # with two values Student's t is 12.7 standard errors wide to each side: no result
FAMILY_LEVEL = 0.05  # of the verdicts of a family together
Key = TypeVar("Key", bound=Hashable)
Values = dict[int, float]  # by seed


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval.

    Attributes:
        mean: the sample mean.
        low: lower end of the interval; minus infinity with one sample.
        high: upper end; infinity with one sample.
        samples: how many values (seeds) it stands on.
    """

    mean: float
    low: float
    high: float
    samples: int

    @property
    def half_width(self) -> float:
        """Half the width of the interval; infinite with one sample."""
        return (self.high - self.low) / 2

    @property
    def has_no_width(self) -> bool:
        """Whether all values were equal, but for rounding."""
        return self.half_width <= ROUNDING * abs(self.mean)

    @property
    def excludes_zero(self) -> bool:
        """Whether zero lies outside the interval."""
        return self.low > 0 or self.high < 0

    @property
    def is_known(self) -> bool:
        """Whether there is an interval to show: it has ends, and stands on three values or more that differ."""
        return self.samples >= FEWEST_FOR_INTERVAL and not self.has_no_width and math.isfinite(self.half_width)

    def text(self, digits: int | None = None, signed: bool = False) -> str:
        """Return ``mean ± half width``, both ends where the sides differ, the mean alone where there is no interval.

        ``digits`` are decimals; when None, two digits of the half width, or three of a mean without interval.
        """
        if digits is None:
            digits = significant(self.half_width, 2) if self.is_known else significant(self.mean, 3)
        mean = number(self.mean, digits, signed)
        if not self.is_known:
            return mean
        if abs(self.high + self.low - 2 * self.mean) > 0.1 * self.half_width:
            return f"{mean} ({number(self.low, digits, signed)} to {number(self.high, digits, signed)})"
        return f"{mean} ± {number(self.half_width, digits)}"

    def __str__(self) -> str:
        return self.text()


def half_width(deviation: float, n: int, level: float = 0.95) -> float:
    """Return half the width of Student's t interval of the mean of n values with a deviation; infinite of one."""
    from scipy import special  # its distributions are the same functions, and take fifty times as long

    return float(special.stdtrit(n - 1, 0.5 + level / 2)) * deviation / math.sqrt(n) if n > 1 else math.inf


def t_interval(values: Sequence[float] | Mapping[int, float], level: float = 0.95) -> Interval:
    """Return the mean and Student's t interval of a few values: right for normal errors at every n ≥ 2.

    They may be given by seed. Of one value the interval is infinite, with one that is no number it is nan; none at all
    is refused.
    """
    values = [float(each) for each in (values.values() if isinstance(values, Mapping) else values)]
    n = len(values)
    if n == 0:
        raise StructuredInitError("an interval needs at least one value")
    if not all(map(math.isfinite, values)):
        return Interval(math.nan, math.nan, math.nan, n)
    mean, half = math.fsum(values) / n, half_width(stdev(values) if n > 1 else math.inf, n, level)
    return Interval(mean, mean - half, mean + half, n)


def paired_values(arm: Mapping[int, float], baseline: Mapping[int, float]) -> Values:
    """Return arm − baseline by seed, over the seeds that both have; refuse two that have none in common.

    Differences that are equal but for the rounding of what was subtracted are made equal: their spread means nothing.
    """
    seeds = sorted(set(arm) & set(baseline))
    if not seeds:
        raise StructuredInitError("the two arms have no seed in common, so nothing is paired")
    differences = {seed: arm[seed] - baseline[seed] for seed in seeds}
    size = max(abs(values[seed]) for values in (arm, baseline) for seed in seeds)
    if not math.isfinite(size) or not are_equal(differences.values(), size):
        return differences
    shared = differences[seeds[0]]
    return dict.fromkeys(seeds, 0.0 if abs(shared) <= ROUNDING * size else shared)


def are_equal(values: Collection[float], size: float) -> bool:
    """Tell whether values are equal, but for the rounding of numbers of a size."""
    return max(values) - min(values) <= ROUNDING * size


def p_value(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of Student's t-test that the mean of paired differences is zero.

    It is 1 where the differences tell nothing: of one seed, or equal in all seeds but for rounding.
    """
    from scipy import special

    n = len(differences)
    if n < 2 or not all(map(math.isfinite, differences)):
        return 1.0
    mean, spread = math.fsum(differences) / n, stdev(differences)
    if spread <= ROUNDING * abs(mean):
        return 1.0
    return float(2 * special.stdtr(n - 1, -abs(mean) / spread * math.sqrt(n)))


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """Return adjusted p-values: those below α are, together, wrong with a probability of at most α.

    Holm 1979, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6: the
    i-th smallest of m p-values, counted from 0, is multiplied by m − i; none is smaller than the one before it.
    """
    adjusted: dict[Key, float] = {}
    largest = 0.0
    for place, key in enumerate(sorted(p_values, key=lambda each: p_values[each])):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[key]))
        adjusted[key] = largest
    return {key: adjusted[key] for key in p_values}

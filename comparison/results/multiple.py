"""Many differences at once: p-values adjusted so that verdicts on a whole family are wrong in 5 % of comparisons.

Holm's step-down method on paired t-tests. It needs neither equal spreads nor a correlation between arms, of which three
seeds can tell nothing; ``benchmarks/results/many_arms.md`` shows what Dunnett's test and the largest t of an estimated
correlation do instead.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from comparison.results.paired import ROUNDING, deviation

LEVEL = 0.05

Key = TypeVar("Key", bound=Hashable)


def p_value(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of Student's t-test that the mean of paired differences is zero.

    It is 1 where the differences tell nothing: of one seed, or equal in all seeds but for rounding.

    Args:
        differences: one per seed.
    """
    from scipy import stats

    n = len(differences)
    if n < 2 or not all(map(math.isfinite, differences)):
        return 1.0
    mean, spread = math.fsum(differences) / n, deviation(differences)
    if spread <= ROUNDING * abs(mean):
        return 1.0
    return float(2 * stats.t.sf(abs(mean) / spread * math.sqrt(n), n - 1))


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """Return adjusted p-values: those below α are, together, wrong with a probability of at most α.

    Holm 1979, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6: the
    i-th smallest of m p-values, counted from 0, is multiplied by m − i; none is smaller than the one before it.

    Args:
        p_values: of one family, by anything.
    """
    adjusted: dict[Key, float] = {}
    largest = 0.0
    for place, key in enumerate(sorted(p_values, key=lambda each: p_values[each])):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[key]))
        adjusted[key] = largest
    return {key: adjusted[key] for key in p_values}

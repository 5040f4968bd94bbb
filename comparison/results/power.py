"""What a comparison of so many seeds can see: the smallest effect it would have found, and what smaller ones take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from comparison.results.metric import Metric
from comparison.results.paired import ROUNDING, deviation

POWER = 0.8
MANY = 10_000  # pairs; what takes more has no price worth naming


@dataclass(frozen=True)
class Power:
    """What paired differences of this spread can show.

    Attributes:
        pairs: seeds in which both arms have a number.
        deviation: standard deviation of the paired differences.
        family: how many differences are judged together.
        visible: the smallest true difference that is called better or worse among them with a probability of 80 % or
            more, if the deviation that was found is the true one.
        between: ends of a 95 % interval of ``visible``, for the deviation is an estimate.
        seeds: half width → the pairs at which a 95 % t interval is that narrow, in order of size from the largest; None
            where it takes more than 10,000.
    """

    pairs: int
    deviation: float
    family: int
    visible: float
    between: tuple[float, float]
    seeds: dict[float, int | None]


def power(values: Sequence[float], half_widths: Sequence[float], family: int = 1, level: float = 0.95) -> Power | None:
    """Return what paired differences can show; None below two, and where all are equal.

    Holm's method judges the largest of a family at the level of Bonferroni and all others at a wider one, so the power
    of its verdict is at least that of a t test at Bonferroni's level.

    Args:
        values: paired differences, in the unit that is shown.
        half_widths: of intervals whose price is asked for.
        family: how many differences are judged together.
        level: of the intervals, and of the verdicts of a family together.
    """
    from scipy import stats

    n = len(values)
    if n < 2:
        return None
    spread = deviation(values)
    if not spread > ROUNDING * abs(math.fsum(values) / n):
        return None
    prices = {width: pairs_for(spread, width, level) for width in sorted(half_widths, reverse=True)}
    visible = smallest_effect(spread, n, level=1 - (1 - level) / family)
    # (n − 1) s²/σ² has a chi-squared distribution, and what is visible grows with σ.
    low, high = (math.sqrt((n - 1) / stats.chi2.ppf(0.5 + sign * level / 2, n - 1)) for sign in (1, -1))
    return Power(n, spread, family, visible, (low * visible, high * visible), prices)


def smallest_effect(deviation: float, pairs: int, power: float = POWER, level: float = 0.95) -> float:
    """Return the true mean at which a paired t test of so many pairs rejects zero with probability ``power``.

    With a true mean of μ, ``t`` is noncentral with ``pairs − 1`` degrees of freedom and noncentrality ``μ √pairs / σ``
    (Cohen, Statistical Power Analysis, 1988, §2). The deviation is taken for σ.

    Args:
        deviation: standard deviation of paired differences.
        pairs: at least 2.
        power: probability of an interval that excludes zero on the right side.
        level: of the interval.
    """
    from scipy import optimize, stats

    critical = float(stats.t.isf((1 - level) / 2, pairs - 1))
    short = lambda shift: float(stats.nct.sf(critical, pairs - 1, shift)) - power  # noqa: E731
    shift = optimize.brentq(short, 0.0, 10 * critical)
    return float(shift) * deviation / math.sqrt(pairs)


def pairs_for(deviation: float, half_width: float, level: float = 0.95) -> int | None:
    """Return the smallest number of pairs whose t interval has at most this half width; None above 10,000.

    Args:
        deviation: standard deviation of paired differences.
        half_width: that is wanted.
        level: of the interval.
    """
    from scipy import stats

    def wide(pairs: int) -> bool:
        return float(stats.t.isf((1 - level) / 2, pairs - 1)) * deviation / math.sqrt(pairs) > half_width

    if wide(MANY):
        return None
    low, high = 1, 2
    while wide(high):
        low, high = high, min(2 * high, MANY)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if wide(middle) else (low, middle)
    return high


def usual_half_widths(metric: Metric, scale: float) -> tuple[float, float]:
    """Return two half widths that one asks for: half a point and a fifth of accuracy, about 1 % and 0.4 % of the rest.

    Args:
        metric: what is compared.
        scale: a typical value of it, as shown.
    """
    if metric.factor == 100:
        return 0.5, 0.2
    return _round(0.01 * abs(scale)), _round(0.004 * abs(scale))


def _round(value: float) -> float:
    """Return a number of the digits 1, 2 or 5 near a value; 1 where it is zero or none."""
    if not 0 < value < math.inf:
        return 1.0
    size = 10.0 ** math.floor(math.log10(value))
    return float(f"{min((1, 2, 5, 10), key=lambda digit: abs(math.log(value / size / digit))) * size:.1g}")

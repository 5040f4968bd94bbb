"""What a comparison of so many seeds can see: the smallest effect it would have found, and what smaller ones take."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median, stdev

from comparison.contrasts.contrasts import DIVERGED
from comparison.contrasts.place import PlaceResult
from comparison.intervals import FAMILY_LEVEL, FEWEST_FOR_INTERVAL, ROUNDING, half_width
from comparison.runs.metric import Metric
from comparison.tables import Cell, Table, number, significant

POWER = 0.8
MANY = 1_000  # pairs; what takes more nobody runs, and no price is named
ENOUGH = 5  # seeds, below which a deviation is hardly known


@dataclass(frozen=True)
class Power:
    """What paired differences of this spread can show."""

    pairs: int  # seeds in which both arms have a number
    deviation: float  # standard deviation of the paired differences
    # the smallest true difference that is called better or worse among them with a probability of 80 % or more,
    # if the deviation that was found is the true one
    visible: float
    between: tuple[float, float]  # ends of a 95 % interval of ``visible``, for the deviation is an estimate
    # half width → the pairs at which a 95 % t interval is that narrow, in order of size from the largest; None
    # where it takes more than 1,000
    seeds: dict[float, int | None]


def power(values: Sequence[float], half_widths: Sequence[float], family: int = 1) -> Power | None:
    """Return what paired differences can show; None below two, and where all are equal.

    Holm's method judges the largest of a family at the level of Bonferroni and all others at a wider one, so the power
    of its verdict is at least that of a t test at Bonferroni's level.
    """
    from scipy import stats

    n = len(values)
    if n < 2:
        return None
    spread = stdev(values)
    if not spread > ROUNDING * abs(math.fsum(values) / n):
        return None
    prices = {width: pairs_for(spread, width) for width in sorted(half_widths, reverse=True)}
    visible = smallest_effect(spread, n, level=1 - FAMILY_LEVEL / family)
    # (n − 1) s²/σ² has a chi-squared distribution, and what is visible grows with σ.
    low, high = (math.sqrt((n - 1) / stats.chi2.ppf(0.5 + sign * (1 - FAMILY_LEVEL) / 2, n - 1)) for sign in (1, -1))
    return Power(n, spread, visible, (low * visible, high * visible), prices)


def smallest_effect(deviation: float, pairs: int, level: float = 0.95) -> float:
    """Return the true mean at which a paired t test of so many pairs rejects zero with a probability of 80 %.

    With a true mean of μ, ``t`` is noncentral with ``pairs − 1`` degrees of freedom and noncentrality ``μ √pairs / σ``
    (Cohen, Statistical Power Analysis, 1988, §2). The standard deviation of paired differences is taken for σ.
    """
    return _noncentrality(pairs, level) * deviation / math.sqrt(pairs)


@cache
def _noncentrality(pairs: int, level: float) -> float:
    """Return the noncentrality at which t rejects with a probability: the same for all differences of a page."""
    from scipy import optimize, stats

    critical = float(stats.t.isf((1 - level) / 2, pairs - 1))
    short = lambda shift: float(stats.nct.sf(critical, pairs - 1, shift)) - POWER  # noqa: E731
    return float(optimize.brentq(short, 0.0, 10 * critical))


def pairs_for(deviation: float, width: float, level: float = 0.95, most: int = MANY) -> int | None:
    """Return the smallest number of pairs whose t interval is ± this width or narrower; None above ``most``."""
    found = bisect_left(range(2, most + 1), True, key=lambda pairs: half_width(deviation, pairs, level) <= width) + 2
    return found if found <= most else None


def usual_half_widths(metric: Metric, scale: float) -> tuple[float, float]:
    """Return two half widths that one asks for: 0.5 and 0.2 points of accuracy, about 1 % and 0.4 % of the rest."""
    if metric.factor == 100:
        return 0.5, 0.2
    return _round(0.01 * abs(scale)), _round(0.004 * abs(scale))


def _round(value: float) -> float:
    """Return a number of the digits 1, 2 or 5 near a value; 1 where it is zero or none."""
    if not 0 < value < math.inf:
        return 1.0
    size = 10.0 ** math.floor(math.log10(value))
    return float(f"{min((1, 2, 5, 10), key=lambda digit: abs(math.log(value / size / digit))) * size:.1g}")


def power_table(found: PlaceResult) -> Table:
    """Return a row per judged paired difference of three seeds or more that differ: of fewer the deviation is unknown.

    It has no rows where something was to be decided, by wider intervals, which says itself how many seeds would do.
    """
    unit = f" ({found.metric.unit})" if found.metric.unit else ""
    means = [abs(arm.value.mean) for arm in found.arms if arm.value is not None]
    widths = usual_half_widths(found.metric, median(means) if means else 1.0)
    columns = ["difference", "pairs", f"standard deviation{unit}", f"called different in 80 %{unit}"]
    rows = []
    for each in found.competing if found.question is None else ():
        if each.reason == DIVERGED or each.pairs < FEWEST_FOR_INTERVAL:
            continue
        known = power(list(each.by_seed.values()), widths, found.family)
        if known is not None:
            names = Cell(f"{each.arm} − {each.reference}")
            visible, low, high = (_effect(value, found.metric) for value in (known.visible, *known.between))
            prices = [Cell(f"more than {MANY:,}" if seeds is None else f"{seeds:,}") for seeds in known.seeds.values()]
            deviation = Cell(number(known.deviation, significant(known.deviation, 2)))
            rows.append([names, Cell(str(known.pairs)), deviation, Cell(visible, note=f"{low} to {high}"), *prices])
    return Table([*columns, *(f"seeds for ± {width:g}" for width in widths)], rows)


def _effect(value: float, metric: Metric) -> str:
    """Return an effect for reading; none is larger than the range of the metric."""
    most = metric.ends[1] - metric.ends[0]
    return f"more than {most:g}" if value > most else number(value, significant(value, 2))

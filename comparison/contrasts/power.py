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
    family: int  # how many differences are judged together
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
    return Power(n, spread, family, visible, (low * visible, high * visible), prices)


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


def powers(found: PlaceResult) -> list[tuple[str, str, Power]]:
    """Return arm, reference and power of every judged paired difference of three seeds or more that differ.

    None where something was to be decided: it is by wider intervals, and says itself how many seeds would do.
    """
    if found.question is not None:
        return []
    values = [abs(arm.value.mean) for arm in found.arms if arm.value is not None]

    def at(widths: tuple[float, float]) -> list[tuple[str, str, Power]]:
        return [
            (each.arm, each.reference, one)
            for each in found.competing
            # Of fewer pairs nobody knows the deviation.
            if each.reason != DIVERGED and each.pairs >= FEWEST_FOR_INTERVAL
            if (one := power(list(each.by_seed.values()), widths, found.family)) is not None
        ]

    known = at(usual_half_widths(found.metric, median(values) if values else 1.0))
    if known and not _priced([one for *_, one in known]):  # some that fit what was measured: about 60 and 400 seeds
        least = min(one.deviation for *_, one in known)
        known = at((_round(least / 4), _round(least / 10)))
    return known


def power_table(found: PlaceResult) -> Table | None:
    """Return a row per paired difference; None where none has two different values."""
    known = powers(found)
    if not known:
        return None
    unit = f" ({found.metric.unit})" if found.metric.unit else ""
    priced = _priced([one for *_, one in known])
    most = found.metric.ends[1] - found.metric.ends[0]  # no effect is larger
    widths = [f"seeds for ± {width:g}" for width in priced]
    columns = ["difference", "pairs", f"standard deviation{unit}", f"called different in 80 %{unit}", *widths]
    rows = [
        [
            Cell(f"{arm} − {reference}"),
            Cell(str(one.pairs)),
            Cell(_between([one.deviation])),
            Cell(_between([one.visible], most=most), note=_between(one.between, most=most)),
            *(Cell(_prices([one.seeds[width]])) for width in priced),
        ]
        for arm, reference, one in known
    ]
    return Table(columns, rows)


def power_sentence(found: PlaceResult) -> str:
    """Return the same in a sentence; empty where nothing is known."""
    known = [one for *_, one in powers(found)]
    if not known:
        return ""
    unit = found.metric.points
    prices = "".join(
        f" ± {width:g}{unit} takes {_prices([one.seeds[width] for one in known])} seeds." for width in _priced(known)
    )
    few = f" Run at least {ENOUGH} seeds: with fewer, the deviation is poorly known."
    families = {one.family for one in known}
    among = f", judged among {max(families)}," if max(families) > 1 else ""
    ends = [min(one.between[0] for one in known), max(one.between[1] for one in known)]
    most = found.metric.ends[1] - found.metric.ends[0]  # no effect is larger
    return (
        f"Paired differences have a standard deviation of {_between([one.deviation for one in known])}{unit}. With "
        f"{_between([float(one.pairs) for one in known], 0)} pairs an effect of "
        f"{_between([one.visible for one in known], most=most)}{unit}{among} is called better or worse with a "
        "probability of 80 %. The deviation is an estimate: the effect may have to be "
        f"{_between(ends, most=most)}{unit}.{prices}{few if min(one.pairs for one in known) < ENOUGH else ''}"
    )


def _priced(known: Sequence[Power]) -> list[float]:
    """Return the half widths that some difference can have at a price that is named."""
    return [width for width in known[0].seeds if any(one.seeds[width] is not None for one in known)]


def _prices(seeds: Sequence[int | None]) -> str:
    """Return one number of seeds, or the smallest and the largest; more than 1,000 is not told apart."""
    ordered = sorted(seeds, key=lambda each: math.inf if each is None else each)
    low, high = ("more than 1,000" if each is None else f"{each:,}" for each in (ordered[0], ordered[-1]))
    return low if low == high else f"{low} to {high}"


def _between(values: Sequence[float], digits: int | None = None, most: float = math.inf) -> str:
    """Return one number, or the smallest and the largest; what is above ``most`` is not told apart."""
    low, high = (
        number(value, significant(value, 2)) if digits is None else f"{value:,.{digits}f}"
        for value in (min(values), max(values))
    )
    low, high = (f"more than {most:g}" if end(values) > most else text for end, text in ((min, low), (max, high)))
    return low if low == high else f"{low} to {high}"

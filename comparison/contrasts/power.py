"""What a comparison of so many seeds can see: of each difference, the smallest effect that it would have shown."""

from __future__ import annotations

import math
from functools import cache
from statistics import stdev

from comparison.contrasts.place import PlaceResult
from comparison.intervals import FAMILY_LEVEL
from comparison.runs.metric import Metric
from comparison.tables import Cell, Table, number, significant

POWER = 0.8


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


def power_table(found: PlaceResult) -> Table:
    """Return a row per difference that a t-test has judged, of three seeds or more that differ.

    Holm's method judges the largest of a family at the level of Bonferroni and all others at a wider one, so the power
    of its verdict is at least that of a t test at Bonferroni's level.
    """
    unit = f" ({found.metric.unit})" if found.metric.unit else ""
    rows = []
    for each in found.competing:
        if each.adjusted is None or each.interval is None or not each.interval.is_known:
            continue
        effect = smallest_effect(stdev(each.by_seed.values()), each.pairs, level=1 - FAMILY_LEVEL / found.family)
        names = Cell(f"{each.arm} − {each.reference}")
        rows.append([names, Cell(str(each.pairs)), Cell(_effect_text(effect, found.metric))])
    return Table(["difference", "pairs", f"called different in 80 %{unit}"], rows)


def _effect_text(value: float, metric: Metric) -> str:
    """Return an effect for reading; none is larger than the range of the metric."""
    most = metric.ends[1] - metric.ends[0]
    return f"more than {most:g}" if value > most else number(value, significant(value, 2))

"""What each paired difference of a comparison could have shown, as a table and as a sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from comparison.results.effects import Effects
from comparison.results.power import Power, power, usual_half_widths
from comparison.results.tables import Cell, Table, number, significant

ENOUGH = 5  # seeds, below which a deviation is hardly known


def powers(found: Effects) -> list[tuple[str, str, Power]]:
    """Return arm, reference and power of every paired difference whose seeds differ."""
    return list(_powers(found))


def power_table(found: Effects) -> Table | None:
    """Return a row per paired difference; None where none has two different values."""
    known = powers(found)
    if not known:
        return None
    unit = f" ({found.metric.unit})" if found.metric.unit else ""
    widths = [f"seeds for ± {width:g}" for width in known[0][2].seeds]
    columns = ["difference", "pairs", f"standard deviation{unit}", f"called different in 80 %{unit}", *widths]
    rows = [
        [
            Cell(f"{arm} − {reference}"),
            Cell(str(one.pairs)),
            Cell(number(one.deviation, _digits(one.deviation))),
            Cell(number(one.visible, _digits(one.visible)), note=_between(one.between)),
            *(Cell(_price(seeds)) for seeds in one.seeds.values()),
        ]
        for arm, reference, one in known
    ]
    return Table(columns, rows)


def power_sentence(found: Effects) -> str:
    """Return the same in a sentence; empty where nothing is known."""
    known = [one for _, _, one in powers(found)]
    if not known:
        return ""
    unit = f" {found.metric.unit}" if found.metric.unit else ""
    prices = [
        f"± {width:g}{unit} takes {_prices([one.seeds[width] for one in known])} seeds" for width in known[0].seeds
    ]
    few = f" Run at least {ENOUGH} seeds: with fewer, the deviation is poorly known."
    families = {one.family for one in known}
    among = f", judged among {max(families)}," if max(families) > 1 else ""
    ends = [min(one.between[0] for one in known), max(one.between[1] for one in known)]
    return (
        f"Paired differences have a standard deviation of {_between([one.deviation for one in known])}{unit}. With "
        f"{_between([float(one.pairs) for one in known], 0)} pairs an effect of "
        f"{_between([one.visible for one in known])}{unit}{among} is called better or worse with a probability of "
        f"80 %. The deviation is an estimate: the effect may have to be {_between(ends)}{unit}. {', '.join(prices)}."
        f"{few if min(one.pairs for one in known) < ENOUGH else ''}"
    )


def _powers(found: Effects) -> Iterator[tuple[str, str, Power]]:
    families = [[getattr(arm, kind) for arm in found.arms] for kind in ("baseline", "control", "scrambled")]
    sizes = [sum(each is not None and each.adjusted is not None for each in family) for family in families]
    for arm in found.arms:
        for size, effect in zip(sizes, (arm.baseline, arm.control, arm.scrambled), strict=True):
            if effect is None:
                continue
            one = power(list(effect.by_seed.values()), _widths(found), max(size, 1))
            if one is not None:
                yield arm.name, effect.reference, one


def _widths(found: Effects) -> tuple[float, float]:
    values = [abs(arm.value.mean) for arm in found.arms if arm.value is not None]
    return usual_half_widths(found.metric, median(values) if values else 1.0)


def _price(seeds: int | None) -> str:
    return "more than 10,000" if seeds is None else f"{seeds:,}"


def _prices(seeds: Sequence[int | None]) -> str:
    """Return one number of seeds, or the smallest and the largest; more than 10,000 is not told apart."""
    ordered = sorted(seeds, key=lambda each: math.inf if each is None else each)
    low, high = _price(ordered[0]), _price(ordered[-1])
    return low if low == high else f"{low} to {high}"


def _between(values: Sequence[float], digits: int | None = None) -> str:
    """Return one number, or the smallest and the largest."""
    low, high = (
        number(value, _digits(value)) if digits is None else f"{value:,.{digits}f}"
        for value in (min(values), max(values))
    )
    return low if low == high else f"{low} to {high}"


def _digits(value: float) -> int:
    """Return the decimals that show two digits of a value."""
    return significant(value, 2) if value else 1

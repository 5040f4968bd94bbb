"""What each paired difference of a comparison could have shown, as a table and as a sentence."""

from __future__ import annotations

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
    columns = ["difference", "pairs", f"standard deviation{unit}", f"seen with 80 % power{unit}", *widths]
    rows = [
        [
            Cell(f"{arm} − {reference}"),
            Cell(str(one.pairs)),
            *(Cell(number(value, _digits(value))) for value in (one.deviation, one.visible)),
            *(Cell(f"{seeds:,}") for seeds in one.seeds.values()),
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
        f"± {width:g}{unit} takes {_between([float(one.seeds[width]) for one in known], 0)} seeds"
        for width in known[0].seeds
    ]
    few = f" Run at least {ENOUGH} seeds: with fewer, the deviation is poorly known."
    return (
        f"Paired differences have a standard deviation of {_between([one.deviation for one in known])}{unit}. With "
        f"{_between([float(one.pairs) for one in known], 0)} pairs an effect of "
        f"{_between([one.visible for one in known])}{unit} is seen with a probability of 80 %; "
        f"{', '.join(prices)}.{few if min(one.pairs for one in known) < ENOUGH else ''}"
    )


def _powers(found: Effects) -> Iterator[tuple[str, str, Power]]:
    for arm in found.arms:
        for effect in arm.differences:
            one = power(list(effect.by_seed.values()), _widths(found))
            if one is not None:
                yield arm.name, effect.reference, one


def _widths(found: Effects) -> tuple[float, float]:
    values = [abs(arm.value.mean) for arm in found.arms if arm.value is not None]
    return usual_half_widths(found.metric, median(values) if values else 1.0)


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

"""Numbers and names that are given to a constructor or a function, checked where they are given."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Iterable
from numbers import Integral, Real
from typing import Any, get_args

from structured_init.util.errors import StructuredInitError, nearest

LARGEST = 3.4e38  # of float32, in which most weights are held


def check_finite(who: str, *, null: bool = False, **numbers: Any) -> None:
    """Refuse what is no finite number among arguments of ``who``, by their names; ``null``: None is right as well.

    Raises:
        StructuredInitError: names the first that is wrong, and its value.
    """
    _check(who, numbers, null, "be a finite number", _is_finite)


def check_not_negative(who: str, *, null: bool = False, **numbers: Any) -> None:
    """Refuse what is no finite number from 0; arguments and errors as for :func:`check_finite`."""
    _check(who, numbers, null, "be a finite number from 0", lambda value: _is_finite(value) and value >= 0)


def check_positive(who: str, *, null: bool = False, **numbers: Any) -> None:
    """Refuse what is no finite number above 0; arguments and errors as for :func:`check_finite`."""
    _check(who, numbers, null, "be a finite number above 0", lambda value: _is_finite(value) and value > 0)


def check_share(who: str, **numbers: Any) -> None:
    """Refuse what is no number from 0 and below 1; errors as for :func:`check_finite`."""
    _check(who, numbers, False, "be a number from 0 and below 1", lambda value: _is_finite(value) and 0 <= value < 1)


def check_whole(who: str, least: int | None = 1, *, null: bool = False, **numbers: Any) -> None:
    """Refuse what is no whole number from ``least``, any where that is None; the rest as for :func:`check_finite`."""
    must = "be a whole number" if least is None else f"be a whole number from {least}"
    _check(who, numbers, null, must, lambda value: _is_whole(value) and (least is None or value >= least))


def _is_finite(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and abs(value) <= LARGEST


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check(who: str, numbers: dict[str, Any], null: bool, must: str, is_right: Callable[[Any], bool]) -> None:
    for name, value in numbers.items():
        if not (is_right(value) if value is not None else null):
            raise StructuredInitError(f"{who}: {name} must {must}{' or null' if null else ''}, got {value!r}")


def check_choice(who: str, **choices: tuple[Any, Any]) -> None:
    """Refuse what is none of the values of a ``Literal``: ``check_choice(who, noise=(noise, Noise))``."""
    for name, (value, kinds) in choices.items():
        *most, last = map(str, get_args(kinds))
        if value not in get_args(kinds):
            raise StructuredInitError(f"{who}: {name} must be {', '.join(most)} or {last}, got '{value}'")


def check_known(what: str, name: Any, known: Collection[str]) -> None:
    """Refuse a name that is none of ``known``, naming the nearest; ``what`` says what it names."""
    if name not in known:
        raise StructuredInitError(f"unknown {what} '{name}': {nearest(str(name), known)}")


def check_takes(who: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse the first argument that ``who`` does not take, naming the nearest."""
    for name in given:
        if name not in known:
            raise StructuredInitError(f"{who} takes no argument '{name}': {nearest(name, known)}")


def check_grid(who: str, grid: Any) -> None:
    """Refuse a grid that is not two whole numbers from 1; None passes. Errors as for :func:`check_finite`."""
    if grid is None:
        return
    if not isinstance(grid, list | tuple) or len(grid) != 2:
        raise StructuredInitError(f"{who}: grid must be [rows, columns] or null, got {grid!r}")
    check_whole(who, **{"grid's rows": grid[0], "grid's columns": grid[1]})


UNITS = {"d(?:ays?)?": 86400, "h(?:(?:ou)?rs?)?": 3600, "m(?:in(?:ute)?s?)?": 60, "s(?:ec(?:ond)?s?)?": 1}


def parse_duration(text: str) -> float:
    """Return the seconds of ``55m``, ``5min``, ``2 h``, ``1h30m``, ``01:30:00`` or ``600``."""
    written = re.sub(r"^(\d+):([0-5]\d):([0-5]\d)$", r"\1h\2m\3s", text.strip().lower())
    written = re.sub(r"^\d+(\.\d+)?$", r"\g<0>s", written)
    found = re.fullmatch(r"\s*".join(rf"(?:(\d+(?:\.\d+)?)\s*{unit})?" for unit in UNITS), written)
    parts = found.groups(default="0") if found else ()
    seconds = sum(float(part) * unit for part, unit in zip(parts, UNITS.values(), strict=False))
    if not seconds:
        raise argparse.ArgumentTypeError(f"cannot read '{text}': write 55m, 2h, 1h30m, 01:30:00 or a number of seconds")
    return seconds

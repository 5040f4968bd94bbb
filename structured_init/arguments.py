"""Numbers that are given to a constructor, each checked where it is given: a wrong one is answered by its name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

from structured_init.errors import StructuredInitError

LARGEST = 3.4e38  # of float32, in which most weights are held


def check_finite(who: str, *, null: bool = False, **numbers: Any) -> None:
    """Refuse what is no finite number.

    Args:
        who: whose arguments they are, for the message.
        null: whether None is right as well.
        numbers: by the names of the arguments.

    Raises:
        StructuredInitError: names the first that is wrong, and its value.
    """
    for name, value in numbers.items():
        if value is None and null:
            continue
        if not isinstance(value, Real) or isinstance(value, bool):
            raise StructuredInitError(f"{who}: {name} must be a number{_or(null)}, got {value!r}")
        if not math.isfinite(value):
            raise StructuredInitError(f"{who}: {name} must be a finite number{_or(null)}, got {value}")
        if abs(value) > LARGEST:
            raise StructuredInitError(f"{who}: {name} must be a number that float32 can hold, got {value}")


def check_not_negative(who: str, *, null: bool = False, **numbers: Any) -> None:
    """Refuse what is no finite number from 0; arguments and errors as for :func:`check_finite`."""
    check_finite(who, null=null, **numbers)
    for name, value in numbers.items():
        if value is not None and value < 0:
            raise StructuredInitError(f"{who}: {name} must not be negative, got {value}")


def check_positive(who: str, *, null: bool = False, **numbers: Any) -> None:
    """Refuse what is no finite number above 0; arguments and errors as for :func:`check_finite`."""
    check_finite(who, null=null, **numbers)
    for name, value in numbers.items():
        if value is not None and value <= 0:
            raise StructuredInitError(f"{who}: {name} must be positive{_or(null)}, got {value}")


def check_whole(who: str, least: int | None = 1, *, null: bool = False, **numbers: Any) -> None:
    """Refuse what is no whole number from ``least``, any where that is None; the rest as for :func:`check_finite`."""
    for name, value in numbers.items():
        if value is None and null:
            continue
        if not isinstance(value, Integral) or isinstance(value, bool):
            raise StructuredInitError(f"{who}: {name} must be a whole number{_or(null)}, got {value!r}")
        if least is not None and value < least:
            raise StructuredInitError(f"{who}: {name} must be at least {least}{_or(null)}, got {value}")


def check_flag(who: str, *, null: bool = False, **flags: Any) -> None:
    """Refuse what is neither true nor false: ``"no"`` would count as true; the rest as for :func:`check_finite`."""
    for name, value in flags.items():
        if not isinstance(value, bool) and not (value is None and null):
            raise StructuredInitError(f"{who}: {name} must be true or false{_or(null)}, got {value!r}")


def check_grid(who: str, grid: Any) -> None:
    """Refuse a grid that is not two whole numbers from 1; None passes. Errors as for :func:`check_finite`."""
    if grid is None:
        return
    if not isinstance(grid, Sequence) or isinstance(grid, str) or len(grid) != 2:
        raise StructuredInitError(f"{who}: grid must be [rows, columns] or null, got {grid!r}")
    check_whole(who, **{"grid's rows": grid[0], "grid's columns": grid[1]})


def _or(null: bool) -> str:
    return " or null" if null else ""

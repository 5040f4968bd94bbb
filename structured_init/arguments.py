"""What is given to a constructor or a function: a wrong name is answered with the right ones, a number by its name.

:class:`Answered` is the metaclass of initializers, callbacks, tasks and datamodules, and :func:`answered` decorates
functions; what follows checks numbers where they are given.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import math
import re
from abc import ABCMeta
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, TypeVar, cast, get_args

from structured_init.errors import StructuredInitError, nearest

Function = TypeVar("Function", bound=Callable[..., Any])


class WrongArgumentError(StructuredInitError, TypeError):
    """An argument that a class or a function does not have, or one that it cannot do without."""


class Answered(ABCMeta):
    """Answers arguments that a class does not have with the names of those that it has."""

    @property
    def __signature__(cls) -> inspect.Signature:
        """That of the constructor, which ``inspect`` would not find behind :meth:`__call__`."""
        if cls.__init__ is object.__init__:
            return inspect.Signature()
        whole = inspect.signature(cls.__init__)
        return whole.replace(parameters=list(whole.parameters.values())[1:])

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        _check_arguments(cls.__name__, cls.__signature__, args, kwargs)
        try:
            return ABCMeta.__call__(cls, *args, **kwargs)
        except TypeError as error:  # what a constructor passes on to its base
            found = re.search(r"__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
            if found and found[1] in kwargs and found[1] not in (names := set(argument_names(cls))):
                raise _unknown(cls.__name__, found[1], names) from None
            raise


def argument_names(cls: type) -> Iterator[str]:
    """Yield the names of a class's arguments, its bases' included where they travel through ``**kwargs``."""
    for base in cls.__mro__[:-1]:
        parameters = inspect.signature(base.__init__).parameters
        yield from set(parameters) - {"self", "args", "kwargs"}
        if "__init__" in vars(base) and not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            return


def answered(function: Function) -> Function:
    """Answer arguments that a function does not have with the names of those that it has."""
    takes = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        _check_arguments(function.__name__, takes, args, kwargs)
        return function(*args, **kwargs)

    return cast(Function, call)


def _check_arguments(who: str, takes: inspect.Signature, args: tuple, kwargs: Mapping[str, Any]) -> None:
    try:
        takes.bind(*args, **kwargs)
    except TypeError as error:
        unknown = next((name for name in kwargs if name not in takes.parameters), None)
        if unknown is not None:
            raise _unknown(who, unknown, takes.parameters) from None
        if len(args) > 1 and all(hasattr(each, "plan") for each in args):
            listed = ", ".join(f"{type(each).__name__}()" for each in args)
            raise WrongArgumentError(f"{who}: several initializers go into one list: Compose([{listed}])") from None
        has = f"its arguments are {', '.join(takes.parameters)}" if takes.parameters else "it has none"
        raise WrongArgumentError(f"{who}: {error}; {has}") from None
    for name, value in kwargs.items():
        if type(value) in (int, float) and (beside := number_beside(name, takes)):
            raise WrongArgumentError(f"{who}: {name} must be true or false, got {value}{beside}")


def number_beside(flag: str, takes: inspect.Signature) -> str:
    """Return the end of a message that names the number that belongs to a flag, as ``decay_c`` to ``decay``."""
    known = takes.parameters
    numbers = (each for each in known if each.startswith(f"{flag}_") and type(known[each].default) in (int, float))
    flags = flag in known and isinstance(known[flag].default, bool)
    return next((f": did you mean '{each}'?" for each in numbers if flags), "")


def _unknown(who: str, name: str, valid: Collection[str]) -> WrongArgumentError:
    return WrongArgumentError(f"{who} has no argument '{name}': {nearest(name, valid) if valid else 'it has none'}")


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


def check_choice(who: str, **choices: tuple[Any, Any]) -> None:
    """Refuse what is none of the values of a ``Literal``: ``check_choice(who, noise=(noise, Noise))``."""
    for name, (value, kinds) in choices.items():
        *most, last = map(str, get_args(kinds))
        if value not in get_args(kinds):
            raise StructuredInitError(f"{who}: {name} must be {', '.join(most)} or {last}, got '{value}'")


def check_grid(who: str, grid: Any) -> None:
    """Refuse a grid that is not two whole numbers from 1; None passes. Errors as for :func:`check_finite`."""
    if grid is None:
        return
    if not isinstance(grid, Sequence) or isinstance(grid, str) or len(grid) != 2:
        raise StructuredInitError(f"{who}: grid must be [rows, columns] or null, got {grid!r}")
    check_whole(who, **{"grid's rows": grid[0], "grid's columns": grid[1]})


def _or(null: bool) -> str:
    return " or null" if null else ""


UNITS = {"d(?:ays?)?": 86400, "h(?:(?:ou)?rs?)?": 3600, "m(?:in(?:ute)?s?)?": 60, "s(?:ec(?:ond)?s?)?": 1}


def parse_duration(text: str) -> float:
    """Return the seconds of ``55m``, ``5min``, ``2 h``, ``1h30m``, ``01:30:00`` or ``600``."""
    units = re.fullmatch(r"\s*".join(rf"(?:(\d+)\s*{unit})?" for unit in UNITS), text.strip().lower())
    clock = re.fullmatch(r"(\d+):([0-5]\d):([0-5]\d)", text)
    if re.fullmatch(r"\d+(\.\d+)?", text):
        seconds = float(text)
    elif clock:
        seconds = sum(int(part) * unit for part, unit in zip(clock.groups(), (3600, 60, 1), strict=True))
    else:
        parts = units.groups() if units else ()
        seconds = sum(int(part) * unit for part, unit in zip(parts, UNITS.values(), strict=False) if part)
    if not seconds:
        raise argparse.ArgumentTypeError(f"cannot read '{text}': write 55m, 2h, 1h30m, 01:30:00 or a number of seconds")
    return float(seconds)

"""What is given to a constructor or a function: a wrong name is answered with the right ones, a number by its name.

:class:`Answered` is the metaclass of initializers, callbacks, tasks and datamodules, and :func:`answered` decorates
functions; what follows checks numbers where they are given.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import math
import os
import re
from abc import ABCMeta
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, TypeVar, cast, get_args

from structured_init.errors import StructuredInitError, nearest, shown

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
        takes = cls.__signature__
        _check_arguments(cls, takes, args, kwargs)
        given = {**dict(zip(takes.parameters, args, strict=False)), **kwargs}
        try:
            made = ABCMeta.__call__(cls, *args, **kwargs)
        except StructuredInitError:  # what a class says by itself says more
            raise
        except Exception as error:
            found = re.search(r"__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
            if found and found[1] in kwargs and found[1] not in (names := set(argument_names(cls))):
                raise _unknown(cls, found[1], names) from None  # what a constructor passes on to its base
            _check_kinds(cls.__name__, _kinds_of_class(cls), given)
            raise
        _check_kinds(cls.__name__, _kinds_of_class(cls), given)
        return made


def argument_names(cls: type) -> Iterator[str]:
    """Yield the names of a class's arguments, its bases' included where they travel through ``**kwargs``."""
    for base in cls.__mro__[:-1]:
        parameters = inspect.signature(base.__init__).parameters.values()
        several = {each.name for each in parameters if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}
        yield from {each.name for each in parameters} - several - {"self"}
        if "__init__" in vars(base) and not any(each.kind is each.VAR_KEYWORD for each in parameters):
            return


def answered(function: Function) -> Function:
    """Answer arguments that a function does not have with the names of those that it has."""
    takes = inspect.signature(function)
    kinds = {name: _kinds(each.annotation) for name, each in takes.parameters.items()}

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        _check_arguments(function, takes, args, kwargs)
        _check_kinds(function.__name__, kinds, {**dict(zip(kinds, args, strict=False)), **kwargs})
        return function(*args, **kwargs)

    return cast(Function, call)


OURS = ("structured_init", "callbacks", "lightning_modules", "comparison")
# What an annotation of one of these names, or several, takes, and how that is said.
KINDS: dict[str, tuple[Any, str]] = {
    "bool": (bool, "true or false"),
    "int": (Integral, "a whole number"),
    "float": (Real, "a number"),
    "str": ((str, os.PathLike), "a text"),
    "list": ((list, tuple), "a list"),
    "dict": (Mapping, "a dictionary"),
    "Mapping": (Mapping, "a dictionary"),
    "Collection": (Collection, "a list"),
    "Iterable": (Iterable, "a list or a loader"),
    "None": (type(None), "null"),
}


def _kinds(annotation: Any) -> tuple[str, ...]:
    """Return the kinds of an annotation; none where it names anything else."""
    inner = r"\[[^][]*\]"
    kinds = tuple(re.sub(inner, "", re.sub(inner, "", str(annotation))).split(" | "))
    return kinds if all(kind in KINDS for kind in kinds) else ()


@functools.cache
def _kinds_of_class(cls: type) -> dict[str, tuple[str, ...]]:
    """Return the kinds of a constructor's arguments, its bases' included; a user's own class takes what it likes."""
    return {
        name: _kinds(each.annotation) if base.__module__.partition(".")[0] in OURS else ()
        for base in reversed(cls.__mro__[:-1])
        for name, each in inspect.signature(base.__init__).parameters.items()
    }


def _check_kinds(who: str, kinds: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse a value of another kind than its argument's: ``"no"`` would count as true, and true as a number."""
    for name, value in given.items():
        known = kinds.get(name, ())
        right = [kind for kind in known if kind == "bool" or not isinstance(value, bool)]
        if known and not any(isinstance(value, KINDS[kind][0]) for kind in right):
            wanted = " or ".join(KINDS[kind][1] for kind in known)
            raise StructuredInitError(f"{who}: {name} must be {wanted}, got {shown(value)}")


def _check_arguments(who: Callable, takes: inspect.Signature, args: tuple, kwargs: Mapping[str, Any]) -> None:
    try:
        takes.bind(*args, **kwargs)
    except TypeError as error:
        unknown = next((name for name in kwargs if name not in takes.parameters), None)
        if unknown is not None:
            raise _unknown(who, unknown, takes.parameters) from None
        if len(several := [type(each).__name__ for each in args if hasattr(each, "plan")]) > 1:
            listed = f"Compose([{', '.join(f'{name}()' for name in several)}])"
            raise WrongArgumentError(f"{who.__name__}: several initializers go into one list: {listed}") from None
        has = f"its arguments are {', '.join(takes.parameters)}" if takes.parameters else "it has none"
        raise WrongArgumentError(f"{who.__name__}: {error}; {has}") from None


def _unknown(who: Callable, name: str, valid: Collection[str]) -> WrongArgumentError:
    near = nearest(name, valid) if valid else "it has none"
    if name == "where" and hasattr(who, "plan"):
        near = f"give it the part to write, as in initialize(model.head, {who.__name__}(…))"
    elif name == "where" and "initializer" in valid:
        near = "the initializer has it, as in Mimetic(where='blocks.0')"
    return WrongArgumentError(f"{who.__name__} has no argument '{name}': {near}")


LARGEST = 3.4e38  # of float32, in which most weights are held


def check_finite(who: str, *, null: bool = False, **numbers: Any) -> None:
    """Refuse what is no finite number among arguments of ``who``, by their names; ``null``: None is right as well.

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


def check_share(who: str, **numbers: Any) -> None:
    """Refuse what is no number from 0 and below 1; errors as for :func:`check_finite`."""
    check_not_negative(who, **numbers)
    for name, value in numbers.items():
        if value >= 1:
            raise StructuredInitError(f"{who}: {name} must be below 1, got {value}")


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

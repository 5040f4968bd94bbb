"""How a run ends early: the class of expected mistakes, a missing extra, a name that is not there, and Ctrl-C.

Everything imports this file, so it imports nothing heavy.
"""

from __future__ import annotations

import difflib
import os
import pkgutil
import re
import signal
import sys
from collections.abc import Callable, Iterable
from importlib import metadata
from inspect import isfunction
from typing import Any

# Modules of another name than the distribution that brings them.
BROUGHT_BY = {
    "PIL": "pillow",
    "huggingface_hub": "datasets",
    "markupsafe": "jinja2",
    "pyarrow": "datasets",
    "sklearn": "scikit-learn",
    "tokenizers": "transformers",
}


class StructuredInitError(ValueError):
    """A mistake of configuration, data or checkpoint: its message is one line that says what would be right.

    Everything else that goes wrong is a bug and keeps its traceback.
    """


def shown(value: object) -> str:
    """Return how a value is written in a message: its class alone where it takes more than a short line.

    A function goes by its name, without its address.
    """
    if isfunction(value):
        return value.__qualname__
    text = repr(value)
    return text if len(text) < 80 and "\n" not in text else f"an object of class {type(value).__name__}"


def nearest(name: str, valid: Iterable[str], limit: int = 8) -> str:
    """Return ``"did you mean 'x'?"`` or, where none is near, ``"choose from a, b, c, …"``: ``limit`` valid names."""
    names = sorted(set(valid))
    if not names:
        return "there is nothing to choose from"
    close = sorted((each for each in names if name and name in each), key=len)
    close = close or difflib.get_close_matches(name, names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"choose from {', '.join(names[:limit])}{', …' if len(names) > limit else ''}"


def one_line(error: Exception) -> str:
    """Return the message of an expected mistake, also of one that a data worker has wrapped in its traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("Caught "):
        return lines[-1].partition("StructuredInitError: ")[2] or lines[-1]
    return " ".join(lines)


class MissingExtraError(ModuleNotFoundError):
    """A package is missing that one of our extras brings; the message is one line with the command that installs it."""


def missing_extra(error: ModuleNotFoundError, who: str, extra: str) -> MissingExtraError | None:
    """Return what to install where our ``extra`` brings the module that ``who`` misses; None where it does not."""
    module = (error.name or "").partition(".")[0]
    distribution = BROUGHT_BY.get(module, module).replace("_", "-").lower()
    try:
        requirements = metadata.requires("structured-init") or []
    except metadata.PackageNotFoundError:  # a clone that is not installed
        return None
    ours = re.compile(rf"{distribution}\b.*extra == ['\"]{extra}['\"]", re.IGNORECASE)
    if not any(map(ours.match, requirements)):
        return None
    return MissingExtraError(f"{who} needs {distribution}: pip install 'structured-init[{extra}]'", name=error.name)


def with_extra(extra: str, package: str, get: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a package's ``__getattr__``: it imports by ``get``, and names the extra that brings what is missing."""

    def attribute(name: str) -> Any:
        try:
            return get(name)
        except ModuleNotFoundError as error:
            raise (missing_extra(error, f"{package}.{name}", extra) or error) from None

    return attribute


def imported(option: str, place: str) -> Any:
    """Return what ``MODULE:FUNCTION`` names, which lies in the present folder or among what is installed.

    Raises:
        StructuredInitError: it names nothing; the message begins with ``option``.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return pkgutil.resolve_name(place)
    except (ImportError, AttributeError, ValueError) as error:
        how = "it is MODULE:FUNCTION, such as my_package.models:build, in the present folder or installed"
        raise StructuredInitError(f"{option} '{place}': {error}; {how}") from error


def begin_writing(*others: signal.Signals) -> None:
    """Let Ctrl-C raise ``KeyboardInterrupt`` from here on, so that what is being written is put in order.

    So do other signals that are given, such as SIGTERM, by which schedulers end a job.
    """
    if signal.getsignal(signal.SIGINT) is stop_at_once:
        for each in (signal.SIGINT, *others):
            signal.signal(each, signal.default_int_handler)


def stop_at_once(*_: Any) -> None:
    """End the command: while it imports and checks, an exception could be lost in what a library catches."""
    os.write(2, b"structured-init: stopped before anything was written\n")
    os._exit(130)

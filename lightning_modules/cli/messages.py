"""From jsonargparse's trees of failed attempts to one line that says what would be right."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.loggers import Logger
from torch import nn
from torch.optim import Optimizer

from lightning_modules.cli.commands import added_commands
from structured_init import Initializer, StructuredInitError
from structured_init.errors import nearest

# What a section of the configuration may hold, by the start of its key; the first that fits counts.
BASES: dict[str, type] = {
    "init": Initializer,
    "data": LightningDataModule,
    "trainer.callbacks": Callback,
    "trainer.logger": Logger,
    "model.init_args.network": nn.Module,
    "model.init_args.optimizer": Optimizer,
    "model": LightningModule,
}


def explain(message: str, known_keys: Iterable[str]) -> str:
    """Return one line for an error of the argument parser.

    Args:
        message: jsonargparse's, of many lines.
        known_keys: every key of the configuration, for the nearest one.
    """
    for pattern, answer in PATTERNS.items():
        if found := re.search(pattern, message):
            return answer(found, message, list(known_keys))
    return _deepest(message)


def _unknown_argument(found: re.Match[str], message: str, keys: list[str]) -> str:
    owners = re.findall(r"given class_path '([\w.]+)'", message[: found.start()])
    owners += re.findall(r"^\. Got value: Namespace\(class_path='([\w.]+)'", message[found.end() :])  # of a callable
    if not owners:
        return f"unknown key '{found[1]}': {nearest(found[1], keys)}"
    name = owners[-1].rpartition(".")[2]
    return f"{name} takes no argument '{found[1]}': {nearest(found[1], set(_arguments(owners[-1])))}"


def _unknown_class(found: re.Match[str], message: str, keys: list[str]) -> str:
    names = re.findall(r'Parser key "([\w.]+)"', message)
    base = next((base for start, base in BASES.items() if names and names[0].startswith(start)), object)
    valid = set(_subclass_names(base)) if base is not object else set()
    return f"{'.'.join(names) or 'class_path'}: unknown class '{found[1]}': {nearest(found[1], valid)}"


def _unknown_key(found: re.Match[str], message: str, keys: list[str]) -> str:
    name = found[1].lstrip("-").partition("=")[0]
    return f"unknown key '{name}': {nearest(name, keys)}"


def _unknown_command(found: re.Match[str], message: str, keys: list[str]) -> str:
    return f"unknown command '{found[1]}': {nearest(found[1], [*re.findall(r'[a-z]+', found[2]), *added_commands()])}"


def _required(found: re.Match[str], message: str, keys: list[str]) -> str:
    missing = found[1].partition(".")[2] or found[1]
    return f"no {missing} is given: add a configuration with -c, or --{missing}"


def _wrong_type(found: re.Match[str], message: str, keys: list[str]) -> str:
    names = re.findall(r'Parser key "([\w.]+)"', message[: found.start()])
    return f"{'.'.join(names)}: expected {found[1]}" + (f", got {found[2]}" if found[2] else "")


def _wrong_choice(found: re.Match[str], message: str, keys: list[str]) -> str:
    names = re.findall(r'Parser key "([\w.]+)"', message[: found.start()])
    given = re.search(r"(?:Got|Given) value: (.*)", message[found.end() :])
    types = re.match(r"(?:\s*- Expected an? <class '\w+'>)*", message[found.end() :])
    valid = [choice.strip("' ") for choice in found[1].split(",")]
    valid += [name for name in re.findall(r"<class '(\w+)'>", types[0] if types else "") if name != "NoneType"]
    *others, last = valid
    expected = f"{', '.join(others)} or {last}" if others else last
    return f"{'.'.join(names)}: expected {expected}" + (f", got {given[1]}" if given else "")


def _no_command(found: re.Match[str], message: str, keys: list[str]) -> str:
    return f"no command is given: choose from {', '.join([*found[1].split(','), *added_commands()])}"


Answer = Callable[[re.Match[str], str, list[str]], str]
PATTERNS: dict[str, Answer] = {
    r"Option '([\w.]+)' is not accepted": _unknown_argument,
    r"Expected a dot import path string: (\S+)": _unknown_class,
    r"does not accept option '([\w.]+)'": _unknown_key,
    r"[Uu]nrecognized arguments: (\S+)": _unknown_key,
    r"invalid choice: '([^']*)' \(choose from ([^)]*)\)": _unknown_command,
    r"arguments are required: ([\w.]+)": _required,
    r'expected "subcommand" to be one of {(.*?)}': _no_command,
    r"Expected a typing\.Literal\[(.*?)\]": _wrong_choice,
    r"Expected an? <class '(?!NoneType)(\w+)'>(?:\. Got value: (.*))?": _wrong_type,
}


def _deepest(message: str) -> str:
    """Return the innermost lines of a message, joined: jsonargparse indents what went wrong below where."""
    body = re.split(r"\n\s*Given value type:", message)[0]
    lines = [line.strip(" -") for line in body.splitlines() if line.strip(" -")]
    noise = r"(Subtypes|Errors|Expected a <class 'NoneType'>|Does not validate)"
    return " ".join(dict.fromkeys(line for line in lines if not re.match(noise, line)))


def _arguments(class_path: str) -> Iterator[str]:
    """Yield the names of a class's arguments, its bases' included, since they travel through ``**kwargs``."""
    module, _, name = class_path.rpartition(".")
    for base in getattr(importlib.import_module(module), name).__mro__[:-1]:
        yield from set(inspect.signature(base.__init__).parameters) - {"self", "args", "kwargs"}


def _subclass_names(base: type) -> Iterator[str]:
    """Yield the names of the concrete public subclasses that are imported."""
    for cls in base.__subclasses__():
        if not inspect.isabstract(cls) and not cls.__name__.startswith("_"):
            yield cls.__name__
        yield from _subclass_names(cls)


def original_error(error: Exception) -> Exception:
    """Return what a constructor raised, below the errors that jsonargparse piles on a choice of types."""
    while str(error).startswith("Does not validate against any") and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return error


def refuse_shadowed(names: Iterable[str] = ("callbacks",)) -> None:
    """Refuse to import a folder of the user's in place of this project's package of the same name.

    Raises:
        StructuredInitError: names the folder.
    """
    ours = Path(__file__).resolve().parents[2]
    for name in names:
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin).resolve() if spec and spec.origin else None
        if origin is None or origin.parent != ours / name:
            raise StructuredInitError(
                f"'{origin or name}' hides this project's package '{name}': rename yours, or start from another folder"
            )


def refuse_unwritable(folder: str | os.PathLike[str]) -> None:
    """Refuse an output folder that cannot be made or written to, before any work is done; create nothing.

    Raises:
        StructuredInitError: names the folder.
    """
    path = Path(folder).absolute()
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    if not existing.is_dir():
        raise StructuredInitError(f"cannot write to '{folder}': '{existing}' is a file")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise StructuredInitError(f"cannot write to '{folder}': no permission in '{existing}'")

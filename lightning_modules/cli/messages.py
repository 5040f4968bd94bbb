"""From jsonargparse's trees of failed attempts to one line that says what would be right."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.loggers import Logger
from torch import nn
from torch.optim import Optimizer

from lightning_modules.cli.commands import LIGHTNING, added_commands
from lightning_modules.cli.shadowed import PACKAGES
from lightning_modules.cli.suggestions import suggest
from structured_init import Initializer, StructuredInitError
from structured_init.errors import nearest

# What a section of the configuration may hold, by the start of its key; the first that fits counts.
BASES: dict[str, type] = {
    "init": Initializer,
    "data": LightningDataModule,
    "trainer.callbacks": Callback,
    "trainer.logger": Logger,
    "model.network": nn.Module,
    "model.optimizer": Optimizer,
    "model": LightningModule,
}


# What other programs call a command of this one.
COMMANDS = {
    "train": "fit",
    "run": "fit",
    "eval": "test",
    "evaluate": "test",
    "plot": "show",
    "init": "show",
    "check": "audit",
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
        return f"unknown key '{found[1]}': {suggest(found[1], keys)}"
    name = owners[-1].rpartition(".")[2]
    return f"{name} takes no argument '{found[1]}': {suggest(found[1], set(_arguments(owners[-1])))}"


def _unknown_class(found: re.Match[str], message: str, keys: list[str]) -> str:
    before = message[: found.start()]
    names = re.findall(r'Parser key "([\w.]+)"', before)
    # A class may be but one of the choices.
    kinds = re.search(r"((?:- Expected an? (?:<class '\w+'>|typing\.Literal\[.*?\])\s*)+)- $", before)
    if kinds and _kinds(kinds[1]) not in ("", "list"):
        return f"{'.'.join(names)}: expected {_kinds(kinds[1])}, got {found[1]}"
    key = ".".join(names).replace(".init_args", "")
    base = next((base for start, base in BASES.items() if key.startswith(start)), object)
    valid = set(_subclass_names(base)) if base is not object else set()
    return f"{'.'.join(names) or 'class_path'}: unknown class '{found[1]}': {nearest(found[1], valid)}"


def _unknown_key(found: re.Match[str], message: str, keys: list[str]) -> str:
    name = found[1].lstrip("-").partition("=")[0]
    return f"unknown key '{name}': {suggest(name, [*keys, 'help', 'config'])}"


def _unrecognized(found: re.Match[str], message: str, keys: list[str]) -> str:
    name = found[1]
    if name.startswith("-"):
        return _unknown_key(found, message, keys)
    if name.endswith((".yaml", ".yml", ".json")) or Path(name).is_file():
        return f"'{name}' belongs to no option: a configuration is given with -c {name}"
    return f"'{name}' belongs to no option: several values are joined by commas, without spaces"


def _unknown_command(found: re.Match[str], message: str, keys: list[str]) -> str:
    known = [*LIGHTNING, *added_commands()]
    return f"unknown command '{found[1]}': {nearest(COMMANDS.get(found[1].lower(), found[1]), known)}"


def _required(found: re.Match[str], message: str, keys: list[str]) -> str:
    missing = found[1].partition(".")[2] or found[1]
    if owners := re.findall(r"given class_path '([\w.]+)'", message[: found.start()]):
        return f"{owners[-1].rpartition('.')[2]} needs the argument '{missing}'"
    return f"no {missing} is given: add a configuration with -c, or --{missing}"


def _wrong_type(found: re.Match[str], message: str, keys: list[str]) -> str:
    names = re.findall(r'Parser key "([\w.]+)"', message[: found.start()])
    given = re.search(r"(?:Got|Given) value: (.*)", message[found.end() :])
    got = (found[2] or (given[1] if given else "")).partition(". Got value: ")[0].strip() or "nothing"
    return f"{'.'.join(names)}: expected {_kinds(found[0])}" + (f", got {got}" if given or found[2] else "")


def _kinds(errors: str) -> str:
    """Return the types that jsonargparse expects in a row of errors, as in ``int or bool``."""
    choices = [choice.strip("' ") for found in re.findall(r"Literal\[(.*?)\]", errors) for choice in found.split(",")]
    names = choices + [name for name in re.findall(r"<class '([\w.]+)'>", errors) if name != "NoneType"]
    return " or ".join(dict.fromkeys(names))


def _wrong_choice(found: re.Match[str], message: str, keys: list[str]) -> str:
    names = re.findall(r'Parser key "([\w.]+)"', message[: found.start()])
    given = re.search(r"(?:Got|Given) value: (.*)", message[found.end() :])
    types = re.match(r"(?:\s*- Expected an? <class '\w+'>)*", message[found.end() :])
    valid = [choice.strip("' ") for choice in found[1].split(",")]
    earlier = re.search(r"((?:- Expected an? <class '\w+'>\s*)+)- $", message[: found.start()])
    types = f"{earlier[1] if earlier else ''}{types[0] if types else ''}"
    valid += [name for name in re.findall(r"<class '(\w+)'>", types) if name != "NoneType"]
    *others, last = valid
    expected = f"{', '.join(others)} or {last}" if others else last
    return f"{'.'.join(names)}: expected {expected}" + (f", got {given[1]}" if given else "")


def _no_command(found: re.Match[str], message: str, keys: list[str]) -> str:
    return f"no command is given: choose from {', '.join([*LIGHTNING, *added_commands()])}"


def _no_module(found: re.Match[str], message: str, keys: list[str]) -> str:
    return f"{_key(found, message)}: there is no module '{found[1]}' in the present folder or among what is installed"


def _no_attribute(found: re.Match[str], message: str, keys: list[str]) -> str:
    module = found[1]
    if module in PACKAGES and Path(module).exists():
        return f"{_key(found, message)}: '{module}' is a package of this project, which hides your own: rename yours"
    return f"{_key(found, message)}: module '{module}' has no '{found[2]}'"


def _no_value(found: re.Match[str], message: str, keys: list[str]) -> str:
    return f"{found[1].rpartition('/')[2]} needs a value after it"


def _not_a_class(found: re.Match[str], message: str, keys: list[str]) -> str:
    given = found[2].strip()
    way = "several of them go into Compose, as its initializers" if found[1] == "Initializer" else "give one"
    return f"{_key(found, message)}: expected one {found[1]}, got {given}" + (f": {way}" if given[0] == "[" else "")


def _other_class(found: re.Match[str], message: str, keys: list[str]) -> str:
    given = re.search(r"Expected a path but (\S+)", message)
    return f"{_key(found, message)}: {given[1] if given else 'the class'} is no {found[1]}"


def _no_class(found: re.Match[str], message: str, keys: list[str]) -> str:
    return f"{_key(found, message)}: the name of a class is missing"


def _no_section(found: re.Match[str], message: str, keys: list[str]) -> str:
    section = _key(found, message).rpartition(".")[2]
    inside = [key for key in keys if key.startswith(f"{section}.")][:3]
    return f"'{section}' is a section with keys such as {', '.join(inside)}, got {found[1]}"


def _key(found: re.Match[str], message: str) -> str:
    return ".".join(dict.fromkeys(re.findall(r'Parser key "([\w.]+)"', message[: found.start()])))


Answer = Callable[[re.Match[str], str, list[str]], str]
PATTERNS: dict[str, Answer] = {
    r"Option '([\w.]+)' is not accepted": _unknown_argument,
    r"Expected a dot import path string: (\S+)": _unknown_class,
    r"does not accept option '([\w.]+)'": _unknown_key,
    r"[Uu]nrecognized arguments: (\S+)": _unrecognized,
    r"No (\w+) attribute (\w+)": _no_attribute,
    r"invalid choice: '([^']*)' \(choose from ([^)]*)\)": _unknown_command,
    r"arguments are required: ([\w.]+)": _required,
    r'expected "subcommand" to be one of {(.*?)}': _no_command,
    r"Expected a typing\.Literal\[(.*?)\]": _wrong_choice,
    r"(?:Expected(?: an?)? <class '(?!NoneType)(\w+)'>(?:\s*- (?=Expected))?)+(?:\. Got value: (.*))?": _wrong_type,
    r"No module named '([\w.]+)'": _no_module,
    r"argument (\S+): expected one argument": _no_value,
    r"Not a valid subclass of (\w+)\. Got value: (.*)": _not_a_class,
    r"does not correspond to a subclass of (\w+)": _other_class,
    r"Expected a dot import path string:\s*$": _no_class,
    r"Unable to load config ['\"](.*?)['\"]": _no_section,
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
        parameters = inspect.signature(base.__init__).parameters
        yield from set(parameters) - {"self", "args", "kwargs"}
        if "__init__" in vars(base) and not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            return


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


def refuse_unwritable(folder: str | os.PathLike[str]) -> None:
    """Refuse an output folder that cannot be made or written to, before any work is done; create nothing.

    Raises:
        StructuredInitError: names the folder.
    """
    path = Path(folder).absolute()
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    if not existing.is_dir():
        raise StructuredInitError(f"cannot write to '{folder}': '{existing}' is a file")
    try:
        tempfile.TemporaryFile(dir=existing).close()  # permissions alone do not tell, as of root on a read-only disk
    except OSError as error:
        raise StructuredInitError(f"cannot write to '{folder}': {error.strerror} in '{existing}'") from error

"""Wrong command lines, answered in one line each: what jsonargparse or Lightning says, without what stands around it.

Where a name is wrong, the nearest one is named.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import tempfile
import traceback
from argparse import ArgumentTypeError
from collections.abc import Collection, Iterator
from pathlib import Path

import jsonargparse
import lightning
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.optim import Optimizer

from structured_init import Initializer
from structured_init.util.arguments import parse_duration
from structured_init.util.errors import StructuredInitError, nearest, one_line

# What a configuration names by class.
BASES = (Initializer, LightningModule, LightningDataModule, Callback, Logger, nn.Module, Optimizer)
# What jsonargparse says of where it was, and of types that nobody asked for.
AROUND = re.compile(
    r"Type typing\.Callable.* callable class: "
    r"|Parser key \S+:|Problem with given class_path \S+:"
    r"|Does not validate .*|Subtypes: .*|Errors:|Given value type: .*|(Got|Given) value: .*"
    r"|Expected a <class 'NoneType'>|Expected a path but .* invalid"
)


def explain(message: str, known_keys: Collection[str]) -> str:
    """Return one line for jsonargparse's message of many lines; of the keys that are known, it names the nearest."""
    if found := re.search(r"[Uu]nrecognized arguments: (\S+)", message):
        word = found[1]
        if word.startswith("-"):
            return _unknown_key(word.lstrip("-").partition("=")[0], known_keys)
        return f"'{word}' belongs to no option: a configuration is given with -c {word}"
    if found := re.search(r"does not accept option '([\w.]+)'", message):
        return _unknown_key(found[1], known_keys)
    if found := re.search(r"Option '([\w.]+)' is not accepted", message):
        owner = re.findall(r"class_path[ =]'([\w.]+)'", message.partition("Given value")[0])[-1]
        near = nearest(found[1], [*_arguments(owner), "class_path", "init_args"])
        return f"{owner.rpartition('.')[2]} takes no argument '{found[1]}': {near}"
    if found := re.search(r"arguments are required: \w+\.(\w+)$", message):
        return f"no {found[1]} is given: add a configuration with -c, or --{found[1]}"
    return _shortened(message)


def _unknown_key(name: str, known_keys: Collection[str]) -> str:
    near = nearest(name, known_keys)
    if not near.startswith("did"):  # a section may be misspelled
        near = nearest(name.partition(".")[0], {key.partition(".")[0] for key in known_keys})
    return f"unknown key '{name}': {near}"


def _shortened(message: str) -> str:
    """Return where jsonargparse went wrong, what it says there, and what was given."""
    key = ".".join(dict.fromkeys(re.findall(r'Parser key "([\w.]+)"', message)))
    lines = AROUND.sub("", message.partition("Subclass types expect")[0]).splitlines()
    said = "; ".join(dict.fromkeys(line.strip(" -.") for line in lines if line.strip(" -.")))
    said = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", said)
    said = re.sub(r"Expected a dot import path string: ([^\s;]*)", r"unknown class '\1'", said)
    said = re.sub(r"Expected an? ", "expected ", said)
    given = re.search(r"(?:Got|Given) value: (.*)", message)
    if given and "unknown class" not in said and not given[1].startswith("NestedArg"):
        said += f", got {given[1].partition('. Got value')[0]}"
    if unknown := re.search(r"unknown class '([A-Z]\w*)'", said):
        said += f": {nearest(unknown[1], [cls.__name__ for base in BASES for cls in _subclasses(base)])}"
    return f"{key}: {said}" if key else said


def _arguments(class_path: str) -> list[str]:
    module, _, name = class_path.rpartition(".")
    cls = getattr(importlib.import_module(module), name)
    return jsonargparse.ArgumentParser().add_class_arguments(cls, fail_untyped=False)


def _subclasses(base: type) -> Iterator[type]:
    """Yield the concrete public subclasses that are imported."""
    for cls in base.__subclasses__():
        if not inspect.isabstract(cls) and not cls.__name__.startswith("_"):
            yield cls
        yield from _subclasses(cls)


def original_error(error: Exception) -> Exception:
    """Return what a constructor raised, below the errors that jsonargparse piles on a choice of types."""
    while str(error).startswith("Does not validate against any") and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return error


def refuse_unwritable(folder: str | os.PathLike[str]) -> None:
    """Refuse an output folder that cannot be made or written to, before any work is done; create nothing."""
    path = Path(folder).absolute()
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    if not existing.is_dir():
        raise StructuredInitError(f"cannot write to '{folder}': '{existing}' is a file")
    try:
        tempfile.TemporaryFile(dir=existing).close()  # permissions alone do not tell, as of root on a read-only disk
    except OSError as error:
        raise StructuredInitError(f"cannot write to '{folder}': {error.strerror} in '{existing}'") from error


# Below these Lightning divides by zero, or turns gradients around.
LEAST = {"accumulate_grad_batches": 1, "check_val_every_n_epoch": 1, "gradient_clip_val": 0}


def check_trainer(trainer: jsonargparse.Namespace) -> None:
    """Refuse values of the section ``trainer`` that Lightning takes without a word; read ``5min`` as its time limit."""
    for key, least in LEAST.items():
        given = trainer.get(key)
        if given is not None and given < least:
            raise StructuredInitError(f"trainer.{key} is {given:g}: it must be at least {least}")
    limit = trainer.get("max_time")
    if isinstance(limit, str) and limit.count(":") != 3:  # Lightning's own form is DD:HH:MM:SS
        try:
            trainer.max_time = {"seconds": int(parse_duration(limit))}
        except ArgumentTypeError as error:
            raise StructuredInitError(f"trainer.max_time: {error}") from None


LIBRARIES = tuple(str(Path(module.__file__).parent) for module in (lightning, jsonargparse))
_CALLERS = ("lightning_modules/cli", "lightning_modules/tasks/task.py", "callbacks/lightning_private.py", "comparison")
OURS = tuple(str(Path(__file__).parents[2] / caller) for caller in _CALLERS)


def answer(error: Exception) -> StructuredInitError | None:
    """Return Lightning's own complaint about its arguments as one line; ``None`` for a bug, the user's or another's.

    A complaint is one that Lightning raises by itself, reached through its own code alone.
    """
    frames = traceback.extract_tb(error.__traceback__)
    complaint = isinstance(error, MisconfigurationException) or (
        frames[-1].filename.startswith(LIBRARIES)
        and (frames[-1].line or "").startswith("raise ")  # and no operation that failed there
        and all(frame.filename.startswith(LIBRARIES + OURS) for frame in frames)
    )
    return StructuredInitError(one_line(error)) if complaint else None

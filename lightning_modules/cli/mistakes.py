"""Wrong command lines, answered in one line each: where a name is wrong, the nearest one is named."""

from __future__ import annotations

import importlib
import os
import re
import tempfile
from collections.abc import Collection
from pathlib import Path

import jsonargparse

import lightning_modules
import structured_init
from structured_init.util.errors import StructuredInitError, nearest


def explain(message: str, known_keys: Collection[str]) -> str:
    """Return one line for jsonargparse's message of many lines; of the keys that are known, it names the nearest."""
    if found := re.search(r"[Uu]nrecognized arguments: (\S+)", message):
        if not found[1].startswith("-"):
            return f"'{found[1]}' belongs to no option: a configuration is given with -c {found[1]}"
        return _unknown_key(found[1].lstrip("-").partition("=")[0], known_keys)
    if found := re.search(r"does not accept option '([\w.]+)'", message):
        return _unknown_key(found[1], known_keys)
    if found := re.search(r"Option '([\w.]+)' is not accepted", message):
        module, _, owner = re.findall(r"class_path[ =]'([\w.]+)'", message)[-1].rpartition(".")
        cls = getattr(importlib.import_module(module), owner)
        taken = jsonargparse.ArgumentParser().add_class_arguments(cls, fail_untyped=False)
        return f"{owner} takes no argument '{found[1]}': {nearest(found[1], [*taken, 'class_path', 'init_args'])}"
    if found := re.search(r"arguments are required: \w+\.(\w+)$", message):
        return f"no {found[1]} is given: add a configuration with -c, or --{found[1]}"
    if found := re.search(r"Expected a dot import path string: (\w+)", message):
        return (
            f"unknown class '{found[1]}': {nearest(found[1], [*structured_init.__all__, *lightning_modules.__all__])}"
        )
    return " ".join(message.split())


def _unknown_key(name: str, known_keys: Collection[str]) -> str:
    near = nearest(name, known_keys)
    if not near.startswith("did"):  # a section may be misspelled
        near = nearest(name.partition(".")[0], {key.partition(".")[0] for key in known_keys})
    return f"unknown key '{name}': {near}"


def original_error(error: Exception) -> Exception:
    """Return what a constructor raised, below the errors that jsonargparse piles on a choice of types."""
    while str(error).startswith("Does not validate against any") and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return error


def refuse_unwritable(folder: str | os.PathLike[str]) -> None:
    """Refuse an output folder that cannot be made or written to, before any work is done; create nothing."""
    path = Path(folder).absolute()
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    try:
        tempfile.TemporaryFile(dir=existing).close()  # permissions alone do not tell, as of root on a read-only disk
    except OSError as error:
        raise StructuredInitError(f"cannot write to '{folder}': {error.strerror} in '{existing}'") from error

"""Wrong command lines, answered in one line each: where a name is wrong, the nearest one is named."""

from __future__ import annotations

import importlib
import os
import re
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonargparse

import lightning_modules
import structured_init
from structured_init.presets import preset_names
from structured_init.util.errors import StructuredInitError, nearest, one_line


def explain(error: Exception, known_keys: Collection[str]) -> str:
    """Return one line for an error of jsonargparse; where a name is wrong, it says the nearest that is known."""
    message = one_line(error)
    if found := re.search(r"(?:unrecognized arguments: --|does not accept option ')([\w.]+)", message):
        return _unknown_key(found[1], known_keys)
    if found := re.search(r"Option '([\w.]+)' is not accepted", message):
        module, _, owner = re.findall(r"class_path[ =]'([\w.]+)'", message)[-1].rpartition(".")
        cls = getattr(importlib.import_module(module), owner)
        taken = jsonargparse.ArgumentParser().add_class_arguments(cls, fail_untyped=False)
        return f"{owner} takes no argument '{found[1]}': {nearest(found[1], [*taken, 'class_path', 'init_args'])}"
    if found := re.search(r"Expected a dot import path string: (\w+)", message):
        if found[1] in preset_names():
            preset = f"init/{found[1]}"
            return f"'{found[1]}' is a preset, and a class is taken here: write -c {preset}, or layers: [{preset}]"
        classes = [*structured_init.__all__, *lightning_modules.__all__]
        return f"unknown class '{found[1]}': {nearest(found[1], classes)}"
    return message


def _unknown_key(name: str, known_keys: Collection[str]) -> str:
    near = nearest(name, known_keys)
    if not near.startswith("did"):  # a section may be misspelled
        near = nearest(name.partition(".")[0], {key.partition(".")[0] for key in known_keys})
    return f"unknown key '{name}': {near}"


@contextmanager
def errors_of_constructors(parser: jsonargparse.ArgumentParser) -> Iterator[None]:
    """Raise what a constructor raises as it was, while a parser builds: it answers in its own words otherwise."""
    failures: list[Exception] = []

    def build(cls: type, *args: Any, **kwargs: Any) -> Any:
        try:
            return cls(*args, **kwargs)
        except Exception as error:
            failures.append(error)
            raise

    parser.add_instantiator(build, object)
    try:
        yield
    except ValueError as error:
        if not str(error).startswith("Does not validate against any"):  # a choice of types
            raise
        original = failures[0] if failures else error.__cause__ or error  # Lightning builds the module in its own way
        raise original from original.__cause__


def refuse_unwritable(folder: str | os.PathLike[str]) -> None:
    """Refuse an output folder that cannot be made or written to, before any work is done; create nothing."""
    path = Path(folder).absolute()
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    try:
        tempfile.TemporaryFile(dir=existing).close()  # permissions alone do not tell, as of root on a read-only disk
    except OSError as error:
        raise StructuredInitError(f"cannot write to '{folder}': {error.strerror} in '{existing}'") from error

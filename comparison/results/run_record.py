"""The record of one run of a comparison: what its folder holds, and where.

Beside the folder stand its settings, written before the run starts, and why it failed; inside it the result, written
when the run is complete.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from structured_init.errors import StructuredInitError
from structured_init.files import read_text

Point = tuple[tuple[str, str], ...]  # the values of a grid at one place of it, in the order of the grid

SETTINGS, FAILURE = ".settings.json", ".failed.json"  # endings beside the folder of a run
RESULT = "result.json"  # in it
MISSING = "missing.json"  # in it: what callbacks could not look at, by what and moment


@dataclass(frozen=True)
class RunRecord:
    """A run as its folder shows it.

    Attributes:
        arm: label of its initialization.
        seed: of the run.
        point: values of the grid.
        learning_rate: where one was given by the comparison.
        folder: where the run wrote.
        result: what it gave; None while it is not complete.
        failure: why it stopped, in one line; None where it did not.
        missing: what could not be looked at → moment → why, such as attention that has diverged.
    """

    arm: str
    seed: int
    point: Point
    learning_rate: float | None
    folder: Path
    result: dict[str, Any] | None = field(default=None, repr=False)
    failure: str | None = None
    missing: dict[str, dict[str, str]] = field(default_factory=dict, repr=False)

    @property
    def key(self) -> tuple[str, int, Point, float | None]:
        """What tells a run from every other of its comparison."""
        return self.arm, self.seed, self.point, self.learning_rate

    @property
    def environment(self) -> dict[str, Any]:
        """Hardware, threads and versions; older files call them ``surroundings``."""
        result = self.result or {}
        return result.get("environment") or result.get("surroundings") or {}

    def metric(self, name: str) -> float:
        """Return a final metric; NaN where the run did not log it, or it is no number."""
        return as_float((self.result or {}).get("metrics", {}).get(name))

    def diverged(self, metrics: Iterable[str]) -> bool:
        """Tell whether the complete run ended without a number in one of the metrics, or in any loss."""
        final = (self.result or {}).get("metrics", {})
        judged = {*metrics, *(name for name in final if name.rpartition("/")[2].endswith("loss"))}
        return any(not math.isfinite(as_float(final[name])) for name in judged if name in final)


def read_run(settings_file: Path) -> RunRecord:
    """Return the run whose settings stand in a file ``<folder>.settings.json``.

    Raises:
        StructuredInitError: a file cannot be read.
    """
    settings = read_json(settings_file, "arm", "seed")
    folder = settings_file.with_name(settings_file.name.removesuffix(SETTINGS))
    result, failed, missing = folder / RESULT, folder.with_name(folder.name + FAILURE), folder / MISSING
    rate = settings.get("learning_rate")
    return RunRecord(
        arm=settings["arm"],
        seed=int(settings["seed"]),
        point=tuple((key, str(value)) for key, value in (settings.get("point") or {}).items()),
        learning_rate=None if rate is None else float(rate),
        folder=folder,
        result=read_json(result, "metrics") if result.is_file() else None,
        failure=read_json(failed).get("reason") if failed.is_file() and not result.is_file() else None,
        missing=_missing(missing) if missing.is_file() else {},
    )


def read_json(path: Path, *required: str) -> dict[str, Any]:
    """Return the content of a JSON file.

    Args:
        path: of the file.
        required: keys that it must have.

    Raises:
        StructuredInitError: it cannot be read, is damaged, holds no keys or lacks one.
    """
    text = read_text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StructuredInitError(f"cannot read '{path}': {error}") from error
    if not isinstance(content, dict):
        raise StructuredInitError(f"cannot read '{path}': it holds a {type(content).__name__}, not keys and values")
    for key in required:
        if key not in content:
            raise StructuredInitError(f"cannot read '{path}': it has no '{key}', so no comparison wrote it")
    return content


def _missing(path: Path) -> dict[str, dict[str, str]]:
    content = read_json(path)
    if not all(isinstance(moments, dict) for moments in content.values()):
        raise StructuredInitError(f"cannot read '{path}': it is not a table of what → moment → why")
    return content


def as_float(value: Any) -> float:
    """Return what JSON has for a metric: null is nan, a whole number of more than 308 digits is infinite."""
    try:
        return float(value) if isinstance(value, (int, float)) else math.nan
    except OverflowError:
        return math.inf if value > 0 else -math.inf

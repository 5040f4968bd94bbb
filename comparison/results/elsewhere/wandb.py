"""Histories of Weights & Biases as JSON: what ``run.history()`` and ``run.scan_history()`` of its public API give.

A file is one run, named like it, or several by their names. Rows are a list, one a line, or columns, as pandas writes
them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from comparison.results.elsewhere.runs import Key, Logged, Runs, add, in_order, named
from comparison.results.run_record import as_float
from structured_init.errors import StructuredInitError
from structured_init.files import read_text

STEP = "_step"


def read_wandb(path: Path, pattern: str | None = None) -> Runs:
    """Return the runs of a file, or of all files of a folder.

    Args:
        path: a file ``.json`` or ``.jsonl``, or a folder with such files.
        pattern: how runs are named.

    Raises:
        StructuredInitError: a file is no history.
    """
    runs: Runs = {}
    names: dict[Key, str] = {}
    ends = ("json", "jsonl")
    found = [path] if path.is_file() else sorted(file for end in ends for file in path.rglob(f"*.{end}"))
    files = [file for file in found if file.is_file()]
    for file in files:
        name = file.stem if path.is_file() else file.relative_to(path).with_suffix("").as_posix()
        content = _content(file)
        several = isinstance(content, Mapping) and all(_is_rows(each) for each in content.values())
        for run, rows in content.items() if several and isinstance(content, Mapping) else [(name, content)]:
            add(runs, named(run, pattern), _logged(rows, file), run, names)
    return runs


def _content(file: Path) -> Any:
    text = read_text(file)
    try:
        try:
            return json.loads(text)
        except ValueError:
            return [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise StructuredInitError(f"cannot read '{file}' as JSON: {error}") from None


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, Mapping) for row in value)


def _logged(content: Any, file: Path) -> Logged:
    rows = content
    if isinstance(content, Mapping) and content and all(isinstance(column, Mapping) for column in content.values()):
        places = dict.fromkeys(place for column in content.values() for place in column)
        rows = [{name: column.get(place) for name, column in content.items()} for place in places]
    if not _is_rows(rows):
        raise StructuredInitError(
            f'\'{file}\' is not a history of a run: it should be a list of rows such as {{"{STEP}": 0, "loss": 1.2}}'
        )
    return _metrics(rows)


def _metrics(rows: Sequence[Mapping[str, Any]]) -> Logged:
    """Return the numbers of rows; names with an underscore before them are Weights & Biases' own."""
    found: Logged = {}
    for row in rows:
        step = row.get(STEP)
        at = as_float(step) if isinstance(step, (int, float)) else None
        for name, value in row.items():
            number = float("nan") if value in ("NaN", "Infinity", "-Infinity") else value
            if not name.startswith("_") and isinstance(number, (int, float)) and not isinstance(number, bool):
                found.setdefault(name, []).append((at, as_float(number)))
    return {name: in_order(values) for name, values in found.items()}

"""Runs as MLflow keeps them: files below ``mlruns/<experiment>/<run>/``, or the SQLite database ``mlflow.db``."""

from __future__ import annotations

import contextlib
import math
import sqlite3
from pathlib import Path
from typing import Any

import yaml

from comparison.results.elsewhere.runs import Key, Logged, Runs, add, in_order, named
from structured_init.errors import StructuredInitError
from structured_init.files import refuse_endless

META = "meta.yaml"
SQLITE = b"SQLite format 3\0"


def read_mlflow(path: Path, pattern: str | None = None) -> Runs:
    """Return the runs of an experiment.

    Args:
        path: of the folder of one experiment, or of ``mlruns`` with one experiment that has runs.
        pattern: how runs are named, where their settings do not say arm and seed.

    Raises:
        StructuredInitError: there are several experiments, or a file is damaged.
    """
    found = [folder for folder in _runs_below(path) if _meta(folder).get("lifecycle_stage", "active") != "deleted"]
    experiments = sorted({folder.parent for folder in found})
    if len(experiments) > 1:
        listed = ", ".join(f"'{folder}' ({_meta(folder).get('name', 'without a name')})" for folder in experiments)
        raise StructuredInitError(
            f"'{path}' holds {len(experiments)} experiments: give the folder of one, such as {listed}"
        )
    runs: Runs = {}
    names: dict[Key, str] = {}
    for folder in found:
        tags = _texts(folder / "tags")
        name = str(_meta(folder).get("run_name") or tags.get("mlflow.runName") or folder.name)
        add(runs, named(name, pattern, {**tags, **_texts(folder / "params")}), _logged(folder / "metrics"), name, names)
    return runs


def _runs_below(path: Path) -> list[Path]:
    return sorted(file.parent for file in path.glob(f"**/{META}") if (file.parent / "metrics").is_dir())


def is_mlflow(path: Path) -> bool:
    """Tell whether a folder is MLflow's."""
    return bool(_runs_below(path))


def _meta(folder: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load((folder / META).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise StructuredInitError(f"cannot read '{folder / META}': {error}") from None
    return content if isinstance(content, dict) else {}


def _texts(folder: Path) -> dict[str, str]:
    return {file.relative_to(folder).as_posix(): _text(file).strip() for file in _files(folder)}


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _text(file: Path) -> str:
    refuse_endless(file)
    return file.read_text(encoding="utf-8", errors="replace")


def _logged(folder: Path) -> Logged:
    """Return the metrics of a run: each line of a file is a time, a value and a step."""
    found: Logged = {}
    for file in _files(folder):
        values: list[tuple[float | None, float]] = []
        for number, line in enumerate(_text(file).splitlines(), start=1):
            parts = line.split()
            try:
                values.append((float(parts[2]) if len(parts) > 2 else None, float(parts[1])))
            except (IndexError, ValueError):
                raise StructuredInitError(
                    f"cannot read '{file}', line {number}: expected a time, a value and a step, got '{line}'"
                ) from None
        if values:
            found[file.relative_to(folder).as_posix()] = in_order(values)
    return found


def is_database(path: Path) -> bool:
    """Tell whether a file is a database, as MLflow writes one."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(SQLITE)) == SQLITE


def read_mlflow_database(path: Path, pattern: str | None = None) -> Runs:
    """Return the active runs of a database of MLflow; of several experiments, each run is named ``experiment/run``.

    Args:
        path: of the file.
        pattern: how runs are named, where their settings do not say arm and seed.

    Raises:
        StructuredInitError: it is no database of MLflow, or a damaged one.
    """
    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            found = database.execute(
                "SELECT run_uuid, runs.name, experiments.name FROM runs JOIN experiments USING (experiment_id) "
                "WHERE runs.lifecycle_stage = 'active' ORDER BY start_time, run_uuid"
            ).fetchall()
            tables = {
                name: database.execute(f"SELECT run_uuid, key, value FROM {name}").fetchall()
                for name in ("tags", "params")
            }
            values = database.execute("SELECT run_uuid, key, step, value, is_nan FROM metrics ORDER BY timestamp")
            logged: dict[str, dict[str, list[tuple[float | None, float]]]] = {}
            for run, key, step, value, is_nan in values:
                number = math.nan if is_nan else float(value)
                logged.setdefault(run, {}).setdefault(str(key), []).append((float(step), number))
    except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
        raise StructuredInitError(f"cannot read '{path}' as a database of MLflow: {error}") from None
    several = len({experiment for _, _, experiment in found}) > 1
    runs: Runs = {}
    names: dict[Key, str] = {}
    for run, own, experiment in found:
        settings = {key: str(value) for rows in tables.values() for uuid, key, value in rows if uuid == run}
        name = f"{experiment}/{own or run}" if several else str(own or run)
        add(runs, named(name, pattern, settings), {k: in_order(v) for k, v in logged.get(run, {}).items()}, name, names)
    return runs

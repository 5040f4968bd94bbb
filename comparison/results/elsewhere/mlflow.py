"""Runs as MLflow's file store keeps them: ``mlruns/<experiment>/<run>/``, a plain file per metric, setting and tag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from comparison.results.elsewhere.runs import Key, Logged, Runs, add, in_order, named
from structured_init.errors import StructuredInitError
from structured_init.files import refuse_endless

META = "meta.yaml"


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
    except (OSError, ValueError, yaml.YAMLError) as error:
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

"""Which reader a file or folder is for."""

from __future__ import annotations

from pathlib import Path

from comparison.results.elsewhere.lightning import is_lightning, read_lightning
from comparison.results.elsewhere.mlflow import is_database, is_mlflow, read_mlflow, read_mlflow_database
from comparison.results.elsewhere.runs import Runs
from comparison.results.elsewhere.table import read_table
from comparison.results.elsewhere.tensorboard import EVENTS, read_tensorboard
from comparison.results.elsewhere.wandb import read_wandb
from structured_init.errors import StructuredInitError, nearest

DATABASE = "mlflow.db"
TABLES, HISTORIES = (".csv", ".tsv"), (".json", ".jsonl")


def read_elsewhere(path: Path, pattern: str | None = None, seed: str | None = None) -> Runs:
    """Return the runs of a table, a folder of event files, or an export.

    Args:
        path: of the file or folder.
        pattern: how runs are named, with ``{arm}`` and ``{seed}``, where names have to tell them.
        seed: the setting of Lightning's runs that is the seed, where it is not called so.

    Raises:
        StructuredInitError: there is no such file, it is none of these, or it holds a mistake.
    """
    if not path.exists():
        beside = [each.name for each in path.parent.glob("*")] if path.parent.is_dir() else []
        raise StructuredInitError(f"there is no '{path}': {nearest(path.name, beside)}")
    if path.is_file() and path.suffix.lower() in TABLES:
        return read_table(path, pattern)
    if path.is_file() and path.suffix.lower() in HISTORIES:
        return read_wandb(path, pattern)
    if path.is_file() and is_database(path):
        return read_mlflow_database(path, pattern)
    if path.is_dir() and is_lightning(path):
        return read_lightning(path, pattern, seed)
    if path.is_dir() and next(path.rglob(EVENTS), None) is not None:
        return read_tensorboard(path, pattern)
    if path.is_dir() and is_mlflow(path):
        return read_mlflow(path, pattern)
    if path.is_dir() and is_database(path / DATABASE):
        return read_mlflow_database(path / DATABASE, pattern)
    if path.is_dir() and any(next(path.rglob(f"*{end}"), None) for end in HISTORIES):
        return read_wandb(path, pattern)
    raise StructuredInitError(
        f"'{path}' cannot be read as results: give the folder of a comparison, a table (.csv) with the "
        "columns arm, seed and a metric, a folder of Lightning's CSVLogger or of TensorBoard's event files, MLflow's "
        "mlruns or its database mlflow.db, or histories of Weights & Biases (.json)"
    )

"""What the runs of a comparison gave, as tidy tables: one row per run, one row per logged value."""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from comparison.runs.folder import (
    Manifest,
    Point,
    Run,
    chosen_learning_rates,
    find_runs,
    is_chosen,
    is_published,
    read_manifest,
)
from comparison.runs.metric import Metric
from structured_init.util.errors import StructuredInitError
from structured_init.util.files import read_text, refuse_endless

if TYPE_CHECKING:
    import pandas as pd

MOST_SINGLE = 4  # arms of one run each, beyond which they may be seeds of others
TRAINED = ("epochs", "steps", "training_samples", "seconds")  # how far, on how much, and how long
FORMULA = re.compile(r"[=+\-@\t\r']")  # what begins one; the apostrophe is what is put before it
SHOWN = re.compile(r"seconds$|train/|val/")  # what a curve is drawn of, or over
A_TABLE = (
    "a table has the columns arm, seed and a metric, and a row per run: of a column per arm, pandas' melt makes one;"
    " a seed is the run's number in its arm"
)
NUMBER = re.compile(r"[+-]?\d+\.?\d*(e[+-]?\d+)?", re.IGNORECASE)


def load_results(folder: str | os.PathLike[str]) -> pd.DataFrame:
    """Return one row per complete run of a comparison.

    Columns: ``arm``, ``seed``, one per key of the grid (text, as it was given), ``learning_rate`` (NaN where the
    comparison did not set it), ``chosen`` (whether the run counts: it has the learning rate chosen for its arm on the
    validation split, or none was to be chosen), ``diverged`` (whether the run ended without a number in the metric that
    is compared, or in a loss), one per final metric (values as logged: accuracy is a fraction), ``epochs``, ``steps``,
    ``training_samples`` (NaN where a dataset has no length, or several epochs each take a part of it), ``seconds``.
    Arms stand in the order in which they were given. Without the runs, ``results.csv`` is read.
    """
    import pandas as pd

    manifest, runs = read_manifest(folder), [run for run in find_runs(folder) if run.result is not None]
    if is_published(folder):
        return _stored(Path(folder, "results.csv"), manifest)
    chosen, compared = chosen_learning_rates(folder), Metric(manifest["metric"], manifest["mode"])
    judged = (compared.name, compared.on_validation)
    rows = [result_row(run, is_chosen(run, chosen, manifest), judged) for run in runs]
    columns = ["arm", "seed", *manifest["grid"], "learning_rate", "chosen", "diverged", *TRAINED]
    return _in_order(pd.DataFrame(rows or None, columns=None if rows else columns), manifest)


def result_row(run: Run, chosen: bool, judged: Iterable[str]) -> dict[str, Any]:
    """Return a row of the table of a complete run, which has diverged without a number in a metric that is judged."""
    result = run.result or {}
    return {
        **{**_keys(run), "chosen": chosen, "diverged": run.diverged(judged)},
        **{name: run.metric(name) for name in result["metrics"]},
        **{name: math.nan if result.get(name) is None else result[name] for name in TRAINED},
    }


def load_curves(folder: str | os.PathLike[str]) -> pd.DataFrame:
    """Return every training and validation value that the runs of a comparison logged, unfinished runs included.

    Columns: ``arm``, ``seed``, one per key of the grid, ``learning_rate``, ``chosen``, ``epoch`` (from 0), ``step``
    (optimizer steps taken), ``samples`` (steps × batch size × accumulated batches × devices; NaN where the batch size
    is not known), ``seconds`` (of training since its beginning, where it was logged, else NaN), ``metric``, ``value``.
    Where a resumed run logged a step again, the later value counts. The test split is read once, so it has no curve.
    Without the runs, ``curves.csv`` is read.
    """
    import pandas as pd

    manifest, chosen = read_manifest(folder), chosen_learning_rates(folder)
    if is_published(folder):
        return _stored(Path(folder, "curves.csv"), manifest)
    rows = []
    for run in find_runs(folder):
        samples = _samples_per_step(experiment(run.folder))
        keys = {**_keys(run), "chosen": is_chosen(run, chosen, manifest)}
        for epoch, step, seconds, metric, value in _logged(run.folder / "metrics.csv"):
            place = {"epoch": epoch, "step": step, "samples": step * samples, "seconds": seconds}
            rows.append({**keys, **place, "metric": metric, "value": value})
    columns = [*("arm", "seed"), *manifest["grid"], *("learning_rate", "chosen", "epoch", "step", "samples")]
    columns += ["seconds", "metric", "value"]
    return _in_order(pd.DataFrame(rows or None, columns=columns), manifest)


def chosen_at(table: pd.DataFrame, point: Point) -> pd.DataFrame:
    """Return the rows of one place of the grid that count: those at the chosen learning rate."""
    for key, value in point:
        table = table[table[key] == value]
    return table[table["chosen"].astype(bool)] if len(table) else table


def experiment(folder: Path) -> Mapping[str, Any]:
    """Return the sections of the experiment that a run saved; none where it did not, or its YAML is damaged."""
    file = folder / "experiment.yaml"
    return _sections(read_text(file)) if file.is_file() else {}


@lru_cache(maxsize=64)  # many runs have the same text
def _sections(text: str) -> Mapping[str, Any]:
    try:
        return yaml.safe_load(text) or {}
    except (yaml.YAMLError, RecursionError):  # damaged, or with a tag that only code could read
        return {}


def leaves(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of sections and classes; a dictionary that is one argument's value stays whole."""
    for key, value in values.items():
        name = prefix.removesuffix(".") if key == "init_args" else prefix + key
        if isinstance(value, Mapping) and (not prefix or key == "init_args" or "class_path" in value):
            yield from leaves(f"{name}.", value)
        else:
            yield name, value


def _samples_per_step(settings: Mapping[str, Any]) -> float:
    """Return how many samples one optimizer step of an experiment sees; NaN where it does not say."""
    trainer = settings.get("trainer") or {}
    size = ((settings.get("data") or {}).get("init_args") or {}).get("batch_size")
    devices = trainer.get("devices", 1)
    devices = len(devices) if isinstance(devices, list) else devices
    factors = (size, trainer.get("accumulate_grad_batches", 1), devices, trainer.get("num_nodes", 1))
    known = all(isinstance(factor, int) and factor > 0 for factor in factors)
    return float(math.prod(factors)) if known else math.nan


def _logged(path: Path) -> Iterator[tuple[int, int, float, str, float]]:
    """Yield epoch, steps taken, seconds, metric and value of each logged value that counts."""
    if not path.is_file():
        return
    kept: dict[str, dict[int, tuple[int, float]]] = {}
    seconds: dict[int, float] = {}
    for epoch, step, numbers in _rows(path):
        for name, value in numbers.items():
            if name == "seconds":
                seconds[step] = value
            else:
                values = kept.setdefault(name, {})
                while values and next(reversed(values)) >= step:
                    values.popitem()  # the run was resumed before this step
                values[step] = (epoch, value)
    for metric, values in kept.items():
        for step, (epoch, value) in values.items():
            yield epoch, step, seconds.get(step, math.nan), metric, value


def _rows(path: Path) -> Iterator[tuple[int, int, dict[str, float]]]:
    """Yield epoch, steps taken, and the numbers of curves, of each whole row of a log."""
    refuse_endless(path)
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        reader = csv.DictReader(file)
        for row in reader:
            if not row.get("step") or not row.get("epoch"):
                continue  # a line that was being written
            shown = {name: text for name, text in row.items() if text and name and SHOWN.match(name)}
            try:
                numbers = {name: float(value) for name, value in shown.items()}
                yield int(row["epoch"]), int(row["step"]) + 1, numbers  # Lightning counts from 0
            except ValueError as error:
                raise StructuredInitError(f"cannot read '{path}', line {reader.line_num}: {error}") from error


def to_csv(table: pd.DataFrame) -> str:
    """Return a table as CSV that a spreadsheet takes for data.

    A text that it would take for a formula has an apostrophe before it, as OWASP advises; numbers stay as they are.
    :func:`from_csv` takes it away again.
    """
    texts = table.select_dtypes(exclude="number").columns
    guarded = {column: table[column].map(_guarded) for column in texts}
    return table.assign(**guarded).rename(columns=_guarded).to_csv(index=False)


def _guarded(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and FORMULA.match(value) and not NUMBER.fullmatch(value) else value


def from_csv(text: str) -> str:
    """Return a cell of :func:`to_csv` as it was."""
    return text[1:] if text.startswith("'") and FORMULA.match(text[1:]) else text


def _stored(path: Path, manifest: Manifest) -> pd.DataFrame:
    """Return a table as it was written: names and places of a grid are text, whatever they look like."""
    import pandas as pd

    texts = ["arm", *manifest["grid"]]
    kinds = {_guarded(column): str for column in texts}
    try:
        table = pd.read_csv(path, dtype=kinds, keep_default_na=False, na_values=[""])
    except (OSError, ValueError) as error:  # pandas' own errors are of the second kind
        raise StructuredInitError(f"cannot read '{path}': {error}") from error
    table = table.rename(columns=from_csv)
    for column in ("arm", "seed", *manifest["grid"]):
        if column not in table:
            raise StructuredInitError(f"cannot read '{path}': it has no column '{column}', so no report wrote it")
    return table.assign(**{column: table[column].map(from_csv, na_action="ignore") for column in texts})


def _keys(run: Run) -> dict[str, Any]:
    rate = math.nan if run.learning_rate is None else run.learning_rate
    return {"arm": run.arm, "seed": run.seed, **dict(run.point), "learning_rate": rate}


def _in_order(table: pd.DataFrame, manifest: Manifest) -> pd.DataFrame:
    order = {arm: place for place, arm in enumerate(manifest["arms"])}
    places = [order.get(arm, len(order)) for arm in table["arm"]]
    return table.iloc[sorted(range(len(table)), key=places.__getitem__)].reset_index(drop=True)


def refuse_single_runs(counts: Mapping[str, int]) -> None:
    """Refuse runs of which more than a few arms have one each: those are seeds of other arms, perhaps."""
    single = [name for name, runs in counts.items() if runs == 1]
    if len(single) > max(MOST_SINGLE, 0.75 * len(counts)):
        raise StructuredInitError(
            f"{len(single)} of {len(counts)} arms have a single run ('{single[0]}', '{single[1]}', …): are they seeds "
            "of the same arm? Say how runs are named, --runs PATTERN; or name columns of a table, or settings in logs "
            "of Lightning: --arm NAME --seed NAME"
        )

"""What the runs of a comparison gave, as tidy tables: one row per run, one row per logged value."""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from structured_init.util.errors import StructuredInitError, one_line
from structured_init.util.files import read_text

if TYPE_CHECKING:
    import pandas as pd

TRAINED = ("epochs", "steps", "seconds")  # how far, and how long
SHOWN = re.compile(r"seconds$|train/|val/")  # what a curve is drawn of, or over
A_TABLE = (
    "a table has the columns arm, seed and a metric, and a row per run: of a column per arm, pandas' melt makes one;"
    " a seed is the run's number in its arm"
)


def load_results(folder: str | os.PathLike[str]) -> pd.DataFrame:
    """Return one row per complete run of a comparison.

    Columns: ``arm``, ``seed``, one per key of the grid (text, as it was given), ``learning_rate`` (NaN where the
    comparison did not set it), ``chosen`` (whether the run counts: it has the learning rate chosen for its arm on the
    validation split, or none was to be chosen), ``diverged`` (whether the run ended without a number in the metric that
    is compared, or in a loss), one per final metric (values as logged: accuracy is a fraction), ``epochs``, ``steps``,
    ``seconds``.
    Arms stand in the order in which they were given. Without the runs, ``results.csv`` is read.
    """
    import pandas as pd

    manifest, runs = read_manifest(folder), [run for run in find_runs(folder) if run.result is not None]
    if is_published(folder):
        return _stored(Path(folder, "results.csv"), manifest)
    chosen, compared = chosen_learning_rates(folder), Metric(manifest.metric, manifest.mode)
    judged = (compared.name, compared.on_validation)
    rows = [result_row(run, is_chosen(run, chosen, manifest), judged) for run in runs]
    columns = ["arm", "seed", *manifest.grid, "learning_rate", "chosen", "diverged", *TRAINED]
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
    (optimizer steps taken), ``seconds`` (of training since its beginning, where it was logged, else NaN), ``metric``,
    ``value``.
    Where a resumed run logged a step again, the later value counts. The test split is read once, so it has no curve.
    Without the runs, ``curves.csv`` is read.
    """
    import pandas as pd

    manifest, chosen = read_manifest(folder), chosen_learning_rates(folder)
    if is_published(folder):
        return _stored(Path(folder, "curves.csv"), manifest)
    columns = [*("arm", "seed"), *manifest.grid, "learning_rate", "chosen", "epoch", "step", "seconds"]
    columns += ["metric", "value"]
    parts = []
    for run in find_runs(folder):
        keys = {**_keys(run), "chosen": is_chosen(run, chosen, manifest)}
        parts.append(_logged(run.folder / "metrics.csv").assign(**keys)[columns])
    parts = [part for part in parts if len(part)] or [pd.DataFrame(columns=columns)]
    return _in_order(pd.concat(parts), manifest)


def chosen_at(table: pd.DataFrame, point: Point) -> pd.DataFrame:
    """Return the rows of one place of the grid that count: those at the chosen learning rate."""
    for key, value in point:
        table = table[table[key] == value]
    return table[table["chosen"].astype(bool)] if len(table) else table


def leaves(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of sections and classes; a dictionary that is one argument's value stays whole."""
    for key, value in values.items():
        name = prefix.removesuffix(".") if key == "init_args" else prefix + key
        if isinstance(value, Mapping) and (not prefix or key == "init_args" or "class_path" in value):
            yield from leaves(f"{name}.", value)
        else:
            yield name, value


def _logged(path: Path) -> pd.DataFrame:
    """Return a row per logged value that counts, with the steps taken; a line that is being written is left out."""
    import pandas as pd

    text = read_text(path) if path.is_file() else ""
    try:
        whole = text[: text.rfind("\n") + 1] or "epoch,step\n"
        rows = pd.read_csv(io.StringIO(whole), dtype=str, keep_default_na=False)
        rows = rows[(rows["epoch"] != "") & (rows["step"] != "")]
        table = rows.melt(["epoch", "step"], [name for name in rows if SHOWN.match(name)], "metric", "value")
        table = table[table["value"] != ""].astype({"epoch": int, "step": int, "value": float})
    except (KeyError, ValueError) as error:
        raise StructuredInitError(f"cannot read '{path}': {one_line(error)}") from error
    table["step"] += 1  # Lightning counts from 0
    seconds = table[table["metric"] == "seconds"].drop_duplicates("step", keep="last").set_index("step")["value"]
    table = table[table["metric"] != "seconds"]
    return last_logged(table).assign(seconds=lambda each: each["step"].map(seconds).astype(float))


def last_logged(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a log that count, as they were logged.

    A resumed run logs steps again: what was logged before from its first step on does not count.
    """
    backwards = table[::-1].astype({"step": float})
    again = backwards.groupby("metric")["step"].transform(lambda steps: steps.cummin().shift())
    return table[~(backwards["step"] >= again)[::-1]]


def _stored(path: Path, manifest: Manifest) -> pd.DataFrame:
    """Return a table as it was written: names and places of a grid are text, whatever they look like."""
    import pandas as pd

    texts = ["arm", *manifest.grid]
    try:
        table = pd.read_csv(path, dtype=dict.fromkeys(texts, str), keep_default_na=False, na_values=[""])
    except (OSError, ValueError) as error:  # pandas' own errors are of the second kind
        raise StructuredInitError(f"cannot read '{path}': {error}") from error
    for column in (*texts, "seed"):
        if column not in table:
            raise StructuredInitError(f"cannot read '{path}': it has no column '{column}', so no report wrote it")
    return table


def _keys(run: Run) -> dict[str, Any]:
    rate = math.nan if run.learning_rate is None else run.learning_rate
    return {"arm": run.arm, "seed": run.seed, **dict(run.point), "learning_rate": rate}


def _in_order(table: pd.DataFrame, manifest: Manifest) -> pd.DataFrame:
    order = {arm: place for place, arm in enumerate(manifest.arms)}
    return table.sort_values("arm", key=lambda arms: arms.map(order), kind="stable", ignore_index=True)

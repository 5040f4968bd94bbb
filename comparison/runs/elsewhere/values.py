"""Texts of runs that were made elsewhere, as numbers: what cannot be known is refused with its place."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from comparison.runs.elsewhere.tables import Cells
from comparison.runs.metric import Metric
from structured_init.util.errors import StructuredInitError

RUN = ["arm", "seed"]
UNFINISHED = ("crashed", "failed", "killed", "running", "pending", "scheduled")  # states of Weights & Biases and MLflow
NUMBER = r"(?i:[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?|nan|[-+]?inf(inity)?)"


def read_values(path: Path, cells: Cells, metric: str) -> pd.DataFrame:
    """Return a row per number, by run and step: ``step`` (NaN where each run has one row), ``metric``, ``value``.

    Another metric than the one that is compared is left out where it cannot be read, and what runs logged that have not
    ended, but for those that stopped without a number: they have diverged.
    """
    table = cells.table
    lost = table.index[table["text"].str.lower() == "nan"]
    unfinished = table["state"].str.lower().isin(UNFINISHED) & ~table.index.isin(lost)
    steps = pd.to_numeric(table["step"], errors="coerce").astype(float)
    table = table.assign(step=steps, written=table["step"], run=table.groupby(RUN, sort=False).ngroup())
    if not table.duplicated([*RUN, "metric"]).any():
        table["step"] = math.nan
        if (table["state"] == "").all():  # as pandas writes NaN; a tracker writes it out, and leaves out what was not
            table["text"] = table["text"].mask((table["metric"] == metric) & (table["text"] == ""), "nan")
    elif cells.step:
        for cell in table[table["step"].isna()].itertuples():
            raise StructuredInitError(f"'{path}', {cell.Index}: the step '{cell.written[:40]}' is not a number")
    table = table[(table["text"] != "") & ~unfinished]
    for cell in table[table.duplicated([*RUN, "step", "metric"])].itertuples():
        raise StructuredInitError(
            f"'{path}', {cell.Index}: arm '{cell.arm}', seed {cell.seed} occurs a second time: "
            f"{'keep' if cells.step else 'add a column step, keep'} one of the two, name other columns (--arm "
            "COLUMN --seed COLUMN), or make a table for each value of another setting in which they differ"
        )
    parts = [table[:0].assign(value=math.nan)]
    for name, logged in table.groupby("metric", sort=False):
        try:
            parts.append(logged.assign(value=_numbers(logged, Metric(str(name)))))
        except StructuredInitError as error:
            if name == metric:
                raise StructuredInitError(f"'{path}', {error}") from None
    return pd.concat(parts).sort_values(["run", "step"], kind="stable")


def _numbers(logged: pd.DataFrame, metric: Metric) -> pd.Series:
    """Return the values of a metric, an accuracy as a fraction; refuse the first cell that is no number."""
    for cell in logged[~logged["text"].str.fullmatch(NUMBER)].itertuples():
        raise StructuredInitError(
            f"{cell.Index}: '{cell.text[:40]}' in the column '{metric.name}' is not a number: write percent without "
            f"the sign in a column '{metric.name} (%)', nan for a run that ended without a number, and no row for one "
            "that was lost"
        )
    numbers = logged["text"].astype(float)
    return numbers / 100 if metric.in_percent else metric.fractions(numbers)

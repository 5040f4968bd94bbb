"""Tables of runs that were made elsewhere, read as texts with the places where they stand.

- A tidy table, as CSV (commas, semicolons, tabs), Parquet or JSON lines: a row per run, or per run and step.
- Weights & Biases' exports of its web page, as CSV: of its table of runs (``Name``), and of a chart (a column per run).
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from comparison.runs.records import A_TABLE
from structured_init.util.errors import StructuredInitError, nearest
from structured_init.util.files import read_text, refuse_endless

TABLES = (".csv", ".tsv", ".parquet", ".jsonl")
STEPS = ("step", "_step", "global_step", "epoch")  # by the last part of a name; the first that a table has counts
NAMED = r"(?:(?P<arm>.+)[-_/ ])?seed[-_= ]?(?P<seed>\d{1,18})"
GROUP = r"[\w./-]+: .*"  # how Weights & Biases calls a group of runs: by a setting and its value
LIKE_NUMBER = r"(?i:[-+]?[\d,_]*\.?[\d,_]*(e[-+]?\d+)?\s*%?|nan|[-+]?inf(inity)?)"  # also what is refused later


@dataclass(frozen=True)
class Wanted:
    """How runs that were made elsewhere are to be read.

    Attributes:
        metric: what is compared; may be None if there is one, or one whose name has ``test``.
        mode: ``"max"`` or ``"min"``, whether more or less of it is better; by the metric's name when None.
        seed: the column or setting that is the seed; ``seed`` or the like when None.
        arm: the column or setting that is the arm; the column ``arm``, or the folders' names, when None.
        rows: whether the rows of a table without seeds are runs, which nothing pairs.
    """

    metric: str | None = None
    mode: str | None = None
    seed: str | None = None
    arm: str | None = None
    rows: bool = False


class Cells(NamedTuple):
    """What was read, nothing of it understood."""

    # A row per value, by its place: the texts ``arm``, ``seed``, ``step``, ``state`` of the run, ``metric``, ``text``.
    table: pd.DataFrame
    step: str | None  # what the steps are called; None where nothing says at which step a value was logged
    left_out: Sequence[str] = ()  # runs that were left out, a sentence each


def read_table(path: Path, wanted: Wanted) -> Cells:
    """Return the cells of a table."""
    rows = _rows(path)
    if len(rows.columns) > 1 and all(" - " in name for name in rows.columns[1:]):
        rows = _of_chart(path, rows)
    rows = _with_runs(path, rows, wanted)
    step = next((name for each in STEPS for name in rows if last_part(name.lower()) == each), None)
    state = column(rows, "state") or column(rows, "status")
    runs = rows[["arm", "seed"]].assign(step=rows[step] if step else "", state=rows[state] if state else "")
    metric, value = column(rows, "metric"), column(rows, "value")
    if metric and value:
        return Cells(runs.assign(metric=rows[metric], text=rows[value]), step)
    parts = [runs.assign(metric=name, text=rows[name]) for name in rows if _is_metric(rows[name], wanted.metric)]
    if not parts:
        raise StructuredInitError(f"'{path}' has no column of numbers beside arm, seed and step")
    return Cells(pd.concat(parts), step)


def _is_metric(texts: pd.Series, compared: str | None) -> bool:
    """Tell whether a column is the metric that is compared, or half of what it holds looks like numbers."""
    if last_part(str(texts.name).lower()) in ("", "arm", "seed", *STEPS):  # pandas calls an index ""
        return False
    filled = texts[texts != ""]
    return texts.name == compared or 0 < len(filled) <= 2 * filled.str.fullmatch(LIKE_NUMBER).sum()


def _with_runs(path: Path, rows: pd.DataFrame, wanted: Wanted) -> pd.DataFrame:
    """Return rows with the columns ``arm`` and ``seed``, by the columns that tell them or by the names of runs."""
    name = column(rows, "name")
    told = {"arm": wanted.arm or column(rows, "arm"), "seed": wanted.seed or column(rows, "seed")}
    if name and not any(told.values()):
        if rows[name].str.fullmatch(GROUP).all():
            first = rows[name].iloc[0]
            raise StructuredInitError(f"'{path}' holds means of groups of runs ('{first}'): export it without grouping")
        rows[["arm", "seed"]] = [key_of(each) for each in rows[name]]
        return rows
    if wanted.rows and not told["seed"]:
        for step in STEPS:
            if step in rows:
                raise StructuredInitError(f"'{path}' has a column '{step}' and no seeds: give a row per run")
        told["seed"] = "seed"
        rows["seed"] = [str(number) for number in range(len(rows))]
        if not told["arm"]:
            told["arm"] = "arm"
            rows["arm"] = "runs"
    for meant, found in told.items():
        if found not in rows:
            how = nearest(found, rows) if found else f"name it with --{meant}{few_valued(rows)}; {A_TABLE}"
            raise StructuredInitError(f"'{path}' has no column '{found or meant}': {how}")
    return rows.drop(columns=[*told.values()]).assign(arm=rows[told["arm"]], seed=rows[told["seed"]])


def key_of(name: str) -> tuple[str, str]:
    """Return arm and seed as the name of a run tells them, such as ``mimetic_seed_0``.

    Of any other name, the arm is the name and the seed is empty.
    """
    match = re.fullmatch(NAMED, name)
    return (match["arm"] or "", match["seed"]) if match else (name, "")


def column(rows: pd.DataFrame, name: str) -> str | None:
    """Return the column of that name; where there is none, one in capitals."""
    return name if name in rows else next((each for each in rows if each.lower() == name), None)


def last_part(name: str) -> str:
    """Return the last part of the name of a setting or a column."""
    return re.split("[./]", name)[-1]


def few_valued(rows: pd.DataFrame) -> str:
    """Return the columns that may tell arms or seeds apart, those of fewest values first; empty where none may."""
    likely = []
    for name, texts in rows.items():
        values = texts.nunique()
        if 1 < values < len(rows) and not texts.str.contains(r"\.\d").any():
            likely.append((values, name))
    shown = ", ".join(f"'{name}' ({values} values)" for values, name in sorted(likely)[:5])
    return f", perhaps {shown}" if shown else ""


def read_csv(path: Path, text: str) -> pd.DataFrame:
    """Return the cells of CSV as texts, indexed by their lines."""
    text = text.removeprefix("\ufeff")
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        lines = {f"line {reader.line_num}": cells for cells in reader if any(cells)}
    except csv.Error as error:
        raise StructuredInitError(f"cannot read '{path}', line {reader.line_num}: {error}") from None
    rows = {place: [cell.strip() for cell in cells] for place, cells in lines.items()}
    columns = rows.pop(next(iter(rows), ""), [])
    for place, cells in rows.items():
        if len(cells) != len(columns):
            raise StructuredInitError(f"'{path}', {place}: {len(cells)} cells, but the header has {len(columns)}")
    for name in columns:
        if columns.count(name) > 1:
            raise StructuredInitError(f"'{path}' has two columns that are called '{name}': rename one")
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns, dtype=object)


def _rows(path: Path) -> pd.DataFrame:
    """Return the cells of a table as texts, indexed by their places in the file."""
    if path.suffix.lower() == ".jsonl":
        rows = _json_rows(path)
    elif path.suffix.lower() == ".parquet":
        rows = _parquet_rows(path)
    else:
        rows = read_csv(path, read_text(path))
    if rows.empty:
        raise StructuredInitError(f"'{path}' has no rows: {A_TABLE}")
    return rows


def _parquet_rows(path: Path) -> pd.DataFrame:
    refuse_endless(path)
    try:
        rows = pd.read_parquet(path).astype("string").fillna("").astype(object)
    except (OSError, ValueError, TypeError) as error:
        raise StructuredInitError(f"cannot read '{path}' as a table: {error}") from None
    return rows.set_axis([f"row {number}" for number in range(1, len(rows) + 1)])


def _json_rows(path: Path) -> pd.DataFrame:
    rows = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        try:
            row = {**json.loads(line, object_pairs_hook=_row)}  # a list is no row
        except (ValueError, TypeError, RecursionError) as error:
            raise StructuredInitError(f"cannot read '{path}', line {number}, as JSON of a row: {error}") from None
        rows[f"line {number}"] = {name: str(value) for name, value in row.items() if value is not None}
    return pd.DataFrame.from_dict(rows, orient="index").fillna("")


def _row(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in pairs:
        if name in row:
            raise ValueError(f"'{name}' has two values")
        row[name] = value
    return row


def _of_chart(path: Path, rows: pd.DataFrame) -> pd.DataFrame:
    """Return a chart of Weights & Biases, whose columns are ``<run> - <metric>``, with a row per value."""
    over = rows.columns[0]
    if last_part(over.lower()) not in STEPS:
        raise StructuredInitError(f"'{path}' is a chart over '{over}': export one over steps or epochs")
    columns = [each for each in rows.columns[1:] if not each.endswith(("__MIN", "__MAX", " - _step"))]
    table = rows.melt(over, columns, "column", "value", ignore_index=False)
    names = table.pop("column").str.rsplit(" - ", n=1)
    return table.assign(name=names.str[0], metric=names.str[1])[table["value"] != ""]  # it has the steps of all runs

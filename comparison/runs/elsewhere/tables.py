"""Tables of runs that were made elsewhere, read as texts with the places where they stand.

- A tidy table, as CSV (commas, semicolons, tabs), Parquet or JSON lines: a row per run, or per run and step.
- Weights & Biases' exports of its web page, as CSV: of its table of runs (``Name``), and of a chart (a column per run).
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from comparison.runs.records import A_TABLE, from_csv
from structured_init.util.errors import StructuredInitError, nearest
from structured_init.util.files import read_text, refuse_endless

TABLES = (".csv", ".tsv", ".parquet", ".jsonl")
STEPS = ("step", "_step", "global_step", "epoch")  # by the last part of a name; the first that a table has counts
DECIMAL_COMMA = r"[-+]?\d+(,\d+)?\s*%?|(?i:nan)|"
NAMED = r"(?P<arm>.+)[-_/ ]seed[-_= ]?(?P<seed>\d{1,18})"
GROUP = r"[\w./-]+: .*"  # how Weights & Biases calls a group of runs: by a setting and its value
Key = tuple[str, str]  # arm and seed, as they are written


def read_table(path: Path, pattern: str | None, seed: str | None, arm: str | None) -> pd.DataFrame:
    """Return the cells of a table as texts, indexed by their places, with the columns ``arm`` and ``seed``."""
    rows = _rows(path)
    if len(rows.columns) > 1 and all(" - " in column for column in rows.columns[1:]):
        rows = _of_chart(path, rows)
    name = column(rows, "name")
    if pattern and name is None:
        raise StructuredInitError(f"--runs says how runs are named, and '{path}' has no column Name")
    if pattern or (name and not (arm or seed or column(rows, "arm") or column(rows, "seed"))):
        if rows[name].str.fullmatch(GROUP).all():
            first = rows[name].iloc[0]
            raise StructuredInitError(f"'{path}' holds means of groups of runs ('{first}'): export it without grouping")
        rows[["arm", "seed"]] = [key_of(each, pattern) for each in rows[name]]
        return rows
    columns = {}
    for meant, given in (("arm", arm), ("seed", seed)):
        columns[meant] = column(rows, meant) if given is None else given
        if columns[meant] not in rows:
            how = nearest(given, rows) if given else f"name it with --{meant}{few_valued(rows)}; {A_TABLE}"
            raise StructuredInitError(f"'{path}' has no column '{given or meant}': {how}")
    taken = {meant: rows.pop(name) for meant, name in columns.items()}
    return rows.assign(**taken)


def key_of(name: str, pattern: str | None = None) -> Key:
    """Return arm and seed as the name of a run tells them, such as ``mimetic_seed_0`` or one like the pattern.

    Of any other name, the arm is empty and the seed is the name.
    """
    wanted = NAMED
    if pattern:
        wanted = re.escape(pattern).replace(r"\*", ".*")
        wanted = wanted.replace(r"\{arm\}", "(?P<arm>.+)").replace(r"\{seed\}", r"(?P<seed>\d{1,18})")
    match = re.fullmatch(wanted, name)
    return (match["arm"], match["seed"]) if match else ("", name)


def column(rows: pd.DataFrame, name: str) -> str | None:
    """Return the column of that name; where there is none, one in capitals."""
    return name if name in rows else next((column for column in rows if column.lower() == name), None)


def last_part(name: str) -> str:
    """Return the last part of the name of a setting or a column."""
    return re.split("[./]", name)[-1]


def few_valued(rows: pd.DataFrame) -> str:
    """Return the columns that may tell arms or seeds apart, those of fewest values first; empty where none may."""
    counts = {column: rows[column].nunique() for column in rows if not rows[column].str.contains(r"\.\d").any()}
    likely = sorted((count, column) for column, count in counts.items() if 1 < count < len(rows))
    shown = ", ".join(f"'{column}' ({count} values)" for count, column in likely[:5])
    return f", perhaps {shown}" if shown else ""


def _rows(path: Path) -> pd.DataFrame:
    """Return the cells of a table as texts, indexed by their places in the file."""
    if path.suffix.lower() == ".jsonl":
        rows = _json_rows(path)
    elif path.suffix.lower() == ".parquet":
        refuse_endless(path)
        try:
            rows = pd.read_parquet(path).astype("string").fillna("").astype(object)
        except (OSError, ValueError, TypeError) as error:
            raise StructuredInitError(f"cannot read '{path}' as a table: {error}") from None
        rows.index = pd.Index([f"row {number}" for number in range(1, len(rows) + 1)])
    else:
        rows = csv_rows(path, read_text(path))
    if rows.empty:
        raise StructuredInitError(f"'{path}' has no rows: {A_TABLE}")
    return rows


def _json_rows(path: Path) -> pd.DataFrame:
    rows = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise StructuredInitError(f"cannot read '{path}', line {number}, as JSON: {error}") from None
        if not isinstance(row, Mapping):
            raise StructuredInitError(f'\'{path}\', line {number}: a line is a run or a step of one, {{"arm": "a", …}}')
        rows[f"line {number}"] = {name: "" if value is None else str(value) for name, value in row.items()}
    return pd.DataFrame.from_dict(rows, orient="index").fillna("")


def csv_rows(path: Path, text: str) -> pd.DataFrame:
    """Return the cells of CSV as texts, indexed by their lines."""
    text = text.removeprefix("\ufeff")
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    rows: dict[str, list[str]] = {}
    try:
        columns = [from_csv(name.strip()) for name in next(reader, [])]
        for cells in reader:
            if cells and len(cells) != len(columns):
                said = f"line {reader.line_num}: {len(cells)} cells, but the header has {len(columns)}"
                raise StructuredInitError(f"'{path}', {said}")
            if any(cells):
                rows[f"line {reader.line_num}"] = [from_csv(cell.strip()) for cell in cells]
    except csv.Error as error:
        raise StructuredInitError(f"cannot read '{path}', line {reader.line_num}: {error}") from None
    if len({*columns}) < len(columns):
        twice = next(name for name in columns if columns.count(name) > 1)
        raise StructuredInitError(f"'{path}' has two columns that are called '{twice}': rename one")
    table = pd.DataFrame.from_dict(rows, orient="index", columns=columns, dtype=object)
    if delimiter == ";":  # as a spreadsheet writes it where a comma is the decimal point
        for name in table:
            if table[name].str.fullmatch(DECIMAL_COMMA).all():
                table[name] = table[name].str.replace(",", ".")
    return table


def _of_chart(path: Path, rows: pd.DataFrame) -> pd.DataFrame:
    """Return a chart of Weights & Biases, whose columns are ``<run> - <metric>``, with a row per value."""
    over = rows.columns[0]
    if last_part(over.lower()) not in STEPS:
        raise StructuredInitError(f"'{path}' is a chart over '{over}': export one over steps or epochs")
    columns = [column for column in rows.columns[1:] if not column.endswith(("__MIN", "__MAX", " - _step"))]
    table = rows.melt(over, columns, "column", "value", ignore_index=False)
    names = table.pop("column").str.rsplit(" - ", n=1)
    return table.assign(name=names.str[0], metric=names.str[1])[table["value"] != ""]  # it has the steps of all runs

"""Where runs that were made elsewhere stand, each read into one long table of cells with their places.

- A tidy table, as CSV (commas, semicolons, tabs), Parquet or JSON lines: a row per run, or per run and step.
- Weights & Biases' exports of its web page, as CSV: of its table of runs (``Name``), and of a chart (a column per run).
- Lightning's ``CSVLogger``: a folder with ``metrics.csv`` for each run, and its settings beside it.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from comparison.results.records import A_TABLE, from_csv
from structured_init.errors import StructuredInitError, nearest
from structured_init.files import read_text, refuse_endless

TABLES = (".csv", ".tsv", ".parquet", ".jsonl")
METRICS, SETTINGS = "metrics.csv", ("hparams.yaml", "config.yaml")  # of CSVLogger
STEPS = ("step", "_step", "global_step", "epoch")  # by the last part of a name; the first that a table has counts
SEEDS = ("seed", "seed_everything", "random_seed", "random_state", "manual_seed")  # settings that are one
STOPPED = ("crashed", "failed", "killed")
STATES = ("", "finished", *STOPPED, "running", "pending", "scheduled")  # of Weights & Biases and of MLflow
NUMBER = r"(?i:[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?\s*%?|nan|[-+]?inf(inity)?)"
DECIMAL_COMMA = r"[-+]?\d+(,\d+)?\s*%?|(?i:nan)|"
WHOLE = r"[-+]?\d{1,18}(\.0*)?"
NAMED = r"(?P<arm>.+)[-_/ ]seed[-_= ]?(?P<seed>\d{1,18})"
GROUP = r"[\w./-]+: .*"  # how Weights & Biases calls a group of runs: by a setting and its value
RESUMING = "ckpt_path"  # the setting in which a run differs from the one that it goes on with
MOST_SETTINGS = 10_000
Key = tuple[str, int]  # arm and seed


@dataclass
class Cells:
    """What a source holds.

    ``table`` has a row per cell: ``arm``, ``seed``, ``step`` (NaN where none is known), ``metric``, ``text`` (as it is
    written; empty where nothing was logged) and ``place`` (where it stands, such as ``line 3``).
    """

    table: pd.DataFrame
    counted: str  # what steps are: "optimizer steps" or "epochs"
    left_out: list[str]  # what was left out and why, a sentence each


def read_cells(path: Path, metric: str | None, pattern: str | None, seed: str | None, arm: str | None) -> Cells:
    """Return what a table or a folder of logs holds.

    Raises:
        StructuredInitError: it is none, or it does not say which arm and which seed a run is.
    """
    if not path.exists():
        names = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
        raise StructuredInitError(f"there is no '{path}': {nearest(path.name, names)}")
    if pattern and (pattern.count("{arm}") != 1 or pattern.count("{seed}") != 1):
        raise StructuredInitError(
            f"--runs '{pattern}' has to have {{arm}} and {{seed}} once each, as '{{arm}}/{{seed}}'"
        )
    if path.suffix.lower() in TABLES and not path.is_dir():
        rows = _rows(path)
        if len(rows.columns) > 1 and all(" - " in column for column in rows.columns[1:]):
            rows = _of_chart(path, rows)
        return _cells(path, rows, metric, pattern, seed, arm, [])
    logs = sorted(path.rglob(METRICS))
    if not logs:
        raise StructuredInitError(
            f"'{path}' cannot be read as results: give the folder of a comparison, a table ({', '.join(TABLES)}) with "
            "the columns arm, seed and a metric, or a folder of Lightning's CSVLogger; of what TensorBoard and MLflow "
            "hold, five lines in docs/compare.md make a table"
        )
    rows, left_out = _of_logs(path, logs, pattern, seed, arm)
    return _cells(path, rows, metric, None, None, None, left_out)


def _cells(
    path: Path,
    rows: pd.DataFrame,
    compared: str | None,
    pattern: str | None,
    seed: str | None,
    arm: str | None,
    left_out: list[str],
) -> Cells:
    """Return the cells of a table whose index says where its rows stand."""
    places, rows = pd.Series(rows.index), rows.reset_index(drop=True)
    step = next((column for name in STEPS for column in rows if _last(column.lower()) == name), None)
    metric, value = _column(rows, "metric"), _column(rows, "value")
    if metric and value:
        values = rows[[value]]
    else:
        known = [column for column in rows if _last(column.lower()) in ("arm", "seed", *STEPS)]
        others = [column for column in rows if column not in (arm, seed, "", *known)]  # "": an index of pandas
        values = rows[[column for column in others if _is_numeric(rows[column])]]
        if values.empty:
            raise StructuredInitError(f"'{path}' has no column of numbers beside {', '.join(known)}")
    filled = values[[compared] if compared in values else [*values]].ne("").any(axis=1)
    keys = _keys(path, rows, filled, pattern, seed, arm).assign(place=places)
    state = _column(rows, "state") or _column(rows, "status")
    states = rows[state].str.lower() if state else pd.Series("", rows.index)
    tracked = state is not None and states.isin(STATES).all()
    diverged = values.isin(("nan", "NaN")).any(axis=1)
    reasons = _reasons(path, keys, filled, diverged, states if tracked else None)
    for reason, left in keys[reasons != ""].groupby(reasons):
        named = [
            f"{row.arm} seed {row.seed}" if row.arm and row.seed else row.arm or row.place for row in left.itertuples()
        ]
        left_out.append(f"Left out, as {reason}: {', '.join(dict.fromkeys(named))}.")
    if reasons.all():
        raise StructuredInitError(f"'{path}' has no run that counts: {' '.join(left_out)}")
    keys["step"] = rows[step] if step else ""
    named_by = rows[metric] if metric and value else None
    parts = [keys.assign(metric=name if named_by is None else named_by, text=values[name]) for name in values]
    table = pd.concat(part[reasons == ""] for part in parts)
    table["seed"] = table["seed"].astype(float).astype(int)
    if step and table.duplicated(["arm", "seed", "metric"]).any():
        wrong = table[~table["step"].str.fullmatch(NUMBER)]
        if len(wrong):
            where, text = wrong[["place", "step"]].iloc[0]
            raise StructuredInitError(f"'{path}', {where}: the step '{text[:40]}' is not a number")
    else:
        table["step"] = "nan"
        if not tracked:  # as pandas writes NaN; a tracker writes it out, and leaves empty what was not logged
            table["text"] = table["text"].replace("", "nan")
    table["step"] = table["step"].astype(float)
    _refuse_runs_twice(path, table[table["text"] != ""], "" if step else "add a column step, ")
    return Cells(table, "epochs" if step and _last(step.lower()) == "epoch" else "optimizer steps", left_out)


def _refuse_runs_twice(path: Path, logged: pd.DataFrame, how: str) -> None:
    of_value = ["arm", "seed", "step", "metric"]
    twice = logged[logged.duplicated(of_value, keep=False)]
    for (arm, seed, *_), same in twice.groupby(of_value, dropna=False):
        raise StructuredInitError(
            f"'{path}', {' and '.join(same['place'].iloc[:2])}: arm '{arm}', seed {seed} occurs twice: {how}keep one "
            "of the two, name other columns (--arm COLUMN --seed COLUMN), or make a table for each value of another "
            "setting in which they differ"
        )


def _keys(
    path: Path, rows: pd.DataFrame, filled: pd.Series, pattern: str | None, seed: str | None, arm: str | None
) -> pd.DataFrame:
    """Return arm and seed of each row as texts, empty where not told: those of two columns, or of the runs' names."""
    name = _column(rows, "name")
    if pattern and name is None:
        raise StructuredInitError(f"--runs says how runs are named, and '{path}' has no column Name")
    if pattern or (name and not (arm or seed or _column(rows, "arm") or _column(rows, "seed"))):
        if rows[name].str.fullmatch(GROUP).all():
            first = rows[name].iloc[0]
            raise StructuredInitError(f"'{path}' holds means of groups of runs ('{first}'): export it without grouping")
        keys = [key_of(each, pattern) or ("", "") for each in rows[name]]
        found = pd.DataFrame(keys, columns=["arm", "seed"]).astype(str)
        lost = rows[name][filled & (found["arm"] == "")]
        if len(lost):
            raise _unnamed(path, lost.iloc[0], pattern)
        return found
    columns = {}
    for meant, given in (("arm", arm), ("seed", seed)):
        column = _column(rows, meant) if given is None else given
        if column not in rows:
            how = nearest(given, rows) if given else f"name it with --{meant}{_few_valued(rows)}; {A_TABLE}"
            raise StructuredInitError(f"'{path}' has no column '{given or meant}': {how}")
        columns[meant] = rows[column]
    return pd.DataFrame(columns)


def key_of(name: str, pattern: str | None = None) -> Key | None:
    """Return arm and seed of a run's name, such as ``mimetic_seed_0``, or one like the pattern; None of any other."""
    wanted = NAMED
    if pattern:
        wanted = re.escape(pattern).replace(r"\*", ".*")
        wanted = wanted.replace(r"\{arm\}", "(?P<arm>.+)").replace(r"\{seed\}", r"(?P<seed>\d{1,18})")
    match = re.fullmatch(wanted, name)
    return (match["arm"], int(match["seed"])) if match else None


def _unnamed(path: Path, name: str, pattern: str | None) -> StructuredInitError:
    like = f"as --runs '{pattern}' says" if pattern else "as in mimetic_seed_0"
    return StructuredInitError(
        f"'{path}': cannot tell arm and seed of the run '{name}', which is not named {like}. Say how runs are named, "
        "--runs '{arm}-{seed}', or which columns or settings tell, --arm NAME --seed NAME"
    )


def _reasons(
    path: Path, keys: pd.DataFrame, filled: pd.Series, diverged: pd.Series, states: pd.Series | None
) -> pd.Series:
    """Return why each row counts for nothing: it has not ended, or no value, as the parent of a sweep; else empty.

    A run that stopped without a number has diverged, and counts.
    """
    reasons = pd.Series("", keys.index)
    whole = keys["seed"].str.fullmatch(WHOLE)
    unknown = (keys["arm"] == "") | ~whole
    reasons[~filled & (unknown | (states is not None))] = "they have no value"
    for state in () if states is None else {*states} - {"", "finished"}:
        reasons[(states == state) & ~(diverged & (state in STOPPED))] = f"their state is '{state}'"
    lost = keys[unknown & (reasons == "")]
    if len(lost):
        label, text = lost[["arm", "seed"]].iloc[0]
        said = f"the seed '{text[:40]}' is not a whole number" if label else "the arm is empty"
        raise StructuredInitError(f"'{path}', {lost['place'].iloc[0]}: {said}")
    return reasons


def _column(rows: pd.DataFrame, name: str) -> str | None:
    """Return the column of that name, in capitals or not."""
    return next((column for column in rows if column.lower() == name), None)


def _is_numeric(column: pd.Series) -> bool:
    """Tell whether a column is of numbers: at least half of what it holds is, and anything is one."""
    filled = column[column != ""]
    numbers = filled.str.fullmatch(NUMBER).sum()
    return bool(0 < numbers >= len(filled) - numbers)


def _few_valued(rows: pd.DataFrame) -> str:
    """Return the columns that may tell arms or seeds apart, those of fewest values first; empty where none may."""
    counts = {column: rows[column].nunique() for column in rows if not rows[column].str.contains(r"\.\d").any()}
    likely = sorted((count, column) for column, count in counts.items() if 1 < count < len(rows))
    shown = ", ".join(f"'{column}' ({count} values)" for count, column in likely[:5])
    return f", perhaps {shown}" if shown else ""


# Files of tables


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
        rows = _csv_rows(path, read_text(path))
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


def _csv_rows(path: Path, text: str) -> pd.DataFrame:
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
    if _last(over.lower()) not in STEPS:
        raise StructuredInitError(f"'{path}' is a chart over '{over}': export one over steps or epochs")
    columns = [column for column in rows.columns[1:] if not column.endswith(("__MIN", "__MAX", " - _step"))]
    table = rows.melt(over, columns, "column", "value", ignore_index=False)
    names = table.pop("column").str.rsplit(" - ", n=1)
    return table.assign(name=names.str[0], metric=names.str[1])[table["value"] != ""]  # it has the steps of all runs


# Folders of Lightning's CSVLogger


def _of_logs(
    path: Path, logs: list[Path], pattern: str | None, seed: str | None, arm: str | None
) -> tuple[pd.DataFrame, list[str]]:
    """Return the logs of runs with a row per value, and which folders were left out, a sentence each."""
    names = {log.parent: log.parent.relative_to(path).as_posix() for log in logs}
    settings = {folder: _settings(folder) for folder in names}
    keys = {folder: _key_of_log(path, name, settings[folder], pattern, seed, arm) for folder, name in names.items()}
    if not arm and len({label for label, _ in keys.values()}) == 1:
        others = pd.DataFrame(settings.values()).fillna("")
        likely = _few_valued(others[[name for name in others if _last(name) not in SEEDS]])
        if likely:
            said = f"the folders of '{path}' tell no arms apart: name the setting that does with --arm{likely}"
            raise StructuredInitError(said)
    parts, left_out = [], []
    for key in dict.fromkeys(keys.values()):
        folders = [folder for folder, own in keys.items() if own == key]
        joined = _joined([_log(folder) for folder in folders])
        of_runs = [{name: text for name, text in settings[each].items() if _last(name) != RESUMING} for each in folders]
        if joined is None or any(each != of_runs[0] for each in of_runs):
            said = ", ".join(f"'{names[folder]}'" for folder in folders)
            why = f"Left out, as all of them are {key[0]} seed {key[1]} and none goes on with another"
            left_out.append(f"{why}: {said}. Move away those that do not count.")
        else:
            parts.append(joined.assign(arm=key[0], seed=str(key[1])))
    if not parts:
        raise StructuredInitError(f"'{path}' has no run that counts: {' '.join(left_out)}")
    return pd.concat(parts), left_out


def _log(folder: Path) -> pd.DataFrame:
    """Return a log with a row per value; without its last line where that is still being written."""
    file = folder / METRICS
    text = read_text(file)
    rows = _csv_rows(file, text[: text.rfind("\n") + 1])
    if "step" not in rows:
        raise StructuredInitError(f"'{file}' has no column 'step', so it is no log of CSVLogger")
    rows.index = f"{folder.name}/{METRICS}, " + rows.index
    table = rows.melt("step", rows.columns.difference(STEPS, sort=False), "metric", "value", ignore_index=False)
    return table[table["value"] != ""].drop_duplicates(["metric", "step"], keep="last")


def _joined(logs: list[pd.DataFrame]) -> pd.DataFrame | None:
    """Return the log of one run, of which each part goes on with another; None where they are several runs.

    A part goes on with another if its first step of each metric that both have comes later than the other's first.
    """
    first, *others = sorted(logs, key=lambda log: log["step"].astype(float).min())
    for log in others:
        begins = log["step"].astype(float).groupby(log["metric"]).min()
        steps = first["step"].astype(float)
        if (begins.reindex(first["metric"].unique()) <= steps.groupby(first["metric"]).min()).any():
            return None
        first = pd.concat([first[~(steps >= first["metric"].map(begins))], log])
    return first


def _settings(folder: Path) -> dict[str, str]:
    """Return the settings of a run as texts, by their dotted names."""
    found: dict[str, str] = {}
    for file in (folder / name for name in SETTINGS):
        if file.exists():
            try:
                # As texts, without making what a tag names. A few lines of references can stand for billions.
                content = yaml.load(read_text(file), Loader=yaml.BaseLoader)
                found.update(itertools.islice(_leaves("", content or {}), MOST_SETTINGS))
            except (yaml.YAMLError, RecursionError) as error:
                raise StructuredInitError(f"cannot read '{file}': {error}") from None
    return found


def _leaves(prefix: str, content: Any) -> Iterator[tuple[str, str]]:
    pairs = content.items() if isinstance(content, Mapping) else enumerate(content)
    for name, value in pairs:
        if isinstance(value, (Mapping, list)):
            yield from _leaves(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", value


def _last(name: str) -> str:
    """Return the last part of the name of a setting or a column."""
    return re.split("[./]", name)[-1]


def _key_of_log(
    path: Path, name: str, settings: Mapping[str, str], pattern: str | None, seed: str | None, arm: str | None
) -> Key:
    """Return arm and seed: those that the pattern or settings say; else the arm is the folder's name."""
    bare = re.sub(r"(^|/)version_\d+$", "", name)
    told = [each for each, text in settings.items() if _last(each) in SEEDS and re.fullmatch(WHOLE, text)]
    if not seed and len({settings[each] for each in told}) > 1:
        raise StructuredInitError(f"{' and '.join(told)} of '{path / name}' differ: name the seed with --seed")
    if pattern or not (seed or told):
        key = key_of(name if pattern else f"{path.resolve().name}/{bare}", pattern)
        if key is None:
            raise _unnamed(path, name, pattern)
        label, number = key
    else:
        text = _setting(seed, settings, path / name) if seed else settings[told[0]]
        if not re.fullmatch(WHOLE, text):
            raise StructuredInitError(f"the setting '{seed}' of '{path / name}' is '{text[:40]}', not a whole number")
        label, number = re.sub(r"(^|/)seed_\d+$", "", bare) or path.resolve().name, int(float(text))
    return (_setting(arm, settings, path / name) if arm else label), number


def _setting(wanted: str, settings: Mapping[str, str], folder: Path) -> str:
    """Return a setting by its dotted name or, where no other ends so, by the last part of it."""
    names = {name.removesuffix(".class_path"): text for name, text in settings.items()}
    found = [wanted] if wanted in names else [name for name in names if _last(name) == wanted]
    if len(found) != 1:
        near = f"there are {' and '.join(found)}" if found else nearest(wanted, names)
        raise StructuredInitError(f"no setting of '{folder}' is called '{wanted}': {near}")
    return names[found[0]]

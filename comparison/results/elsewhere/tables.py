"""A table with a row per run, or per run and step, and histories of Weights & Biases.

A table is CSV with the columns arm, seed, a metric or more, and perhaps step. Weights & Biases' exports of its web page
are such tables: of its runs (with a column ``Name``), and of one chart (a column per run, ``<run> - <metric>``). Its
histories are JSON, what ``run.history()`` and ``run.scan_history()`` of its public API give. A file is one run, named
like it, or several by their names. Rows are a list, one a line, or columns, as pandas writes them.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from comparison.results.elsewhere.runs import STATES, Key, Logged, Runs, collected, in_order, named, whole
from comparison.results.folder import as_float
from comparison.results.records import A_TABLE, from_csv
from structured_init.errors import StructuredInitError, nearest
from structured_init.files import read_text, refuse_endless

MOST_COLUMNS = 10_000
EXTREMES = ("__MIN", "__MAX")  # beside each column of a chart
RUN, STEPS, EPOCH = "name", ("step", "_step", "global_step", "trainer/global_step"), "epoch"
STEP = "_step"
FRACTION = r"[-+]?\d*\.\d*(e[-+]?\d+)?\s*%?|nan|"


class _Row(NamedTuple):
    line: int
    cells: dict[str, str]  # by the column's name


def read_table(path: Path, pattern: str | None = None, seed: str | None = None, arm: str | None = None) -> Runs:
    """Return the runs of a table."""
    columns, rows = _read(path)
    of_runs = [" - " in column for column in columns[1:]]
    if columns[0].lower() != RUN and (any(of_runs) if columns[0].lower() in STEPS else of_runs and all(of_runs)):
        _refuse_settings(arm, seed)
        return _chart(path, columns, rows, pattern)
    given = {meant: column for meant, column in (("arm", arm), ("seed", seed)) if column is not None}
    known = {column.lower(): column for column in reversed(columns)} | given
    by_name = RUN in known and "arm" not in known
    for needed in given if by_name else ("arm", "seed"):
        if (column := known.get(needed)) not in columns:
            # Fractions are neither: a table with a column of them per arm has one of the runs' names nowhere.
            fractions = (c for c in columns if all(re.fullmatch(FRACTION, row.cells[c]) for row in rows))
            names = {*columns} - {*fractions, known.get("arm"), known.get("seed")}
            how = "" if needed in given else f"name it with --{needed}, "
            how = how + nearest(column or needed, names) if names else A_TABLE
            raise StructuredInitError(f"'{path}' has no column '{column or needed}': {how}")
    step = next((known[name] for name in STEPS if name in known), None)
    long = {"metric", "value"} <= known.keys()
    if step is None and EPOCH in known and not (by_name or long):
        step = _epochs(path, rows, known, columns)
    kept = {known[name] for name in ("arm", "seed", RUN) if name in known} | {step, ""}  # "": an index of pandas
    kept |= {known.get(EPOCH, "")} if step else set()  # a step's rows of training and of validation both have it
    metrics = [known["value"]] if long else [c for c in columns if c not in kept and _numbers(path, rows, c)]
    if not metrics:
        raise StructuredInitError(f"'{path}' has no column of numbers beside {', '.join(sorted(filter(None, kept)))}")
    runs = Runs()
    runs.counted = "epochs" if step and step == known.get(EPOCH) else runs.counted
    # As Weights & Biases or MLflow has it: what has not ended as it should has no result.
    state = known.get("state", known.get("status", ""))
    if not state or {row.cells[state].lower() for row in rows} - {*STATES}:
        state = ""
    places: dict[tuple[Key, str, float | None], _Row] = {}
    empty: dict[tuple[Key, str], set[float]] = {}  # the steps at which a run has an empty cell
    for row in rows:
        key, ended = _key(path, row, known, by_name, pattern), row.cells[state].lower() if state else "finished"
        diverged = ended in ("crashed", "failed", "killed") and "nan" in {row.cells[c].lower() for c in metrics}
        if ended != "finished" and not diverged:
            runs.left_out[key] = ended
            continue
        at = None if step is None else _number(path, row, step)
        if not by_name:
            runs.setdefault(key, {})  # also one that ended without a value
        for column in metrics:
            name = row.cells[known["metric"]] if long else column
            if not row.cells[column]:  # not every metric is logged at every step
                empty.setdefault((key, name), set()).update(() if at is None else (at,))
                continue
            if (before := places.setdefault((key, name, at), row)) is not row:
                how = "" if step else "add a column 'step', "
                there = "" if at is None else f", step {at:g}"
                raise StructuredInitError(
                    f"'{path}', lines {before.line} and {row.line}: arm '{key[0]}', seed {key[1]}{there} occurs twice: "
                    f"{how}keep one of the two, name other columns (--arm COLUMN --seed COLUMN), or make a table for "
                    "each value of another setting in which they differ"
                )
            runs.setdefault(key, {}).setdefault(name, []).append((at, _number(path, row, column)))
    for key, logged in runs.items():
        runs[key] = {name: in_order(values) for name, values in logged.items()}
    _end_without_numbers(runs, empty)
    if not runs and runs.left_out:
        raise StructuredInitError(f"'{path}': no run has finished")
    return runs


def _epochs(path: Path, rows: list[_Row], known: dict[str, str], columns: list[str]) -> str | None:
    """Return the column of epochs where they are the steps: a run has several, and no setting tells its rows apart."""
    of_runs: dict[Key, list[_Row]] = {}
    for row in rows:
        of_runs.setdefault(_key(path, row, known, False, None), []).append(row)
    others = [c for c in columns if c not in (known["arm"], known["seed"], known[EPOCH])]
    sets = [{frozenset(row.cells[c] for row in of_run) for of_run in of_runs.values()} for c in others]
    settings = any(len(each) == 1 and len(each.pop()) > 1 for each in sets)  # every run has the same values, several
    numbers = all(re.fullmatch(r"[\d.]+", row.cells[known[EPOCH]]) for row in rows)
    return known[EPOCH] if len(of_runs) < len(rows) and numbers and not settings else None


def _end_without_numbers(runs: Runs, empty: Mapping[tuple[Key, str], set[float]]) -> None:
    """Take a run as ended without a number where its last cells are empty, as pandas writes NaN.

    That is, behind its own last number, at a step at which half of the runs have one, or most of an arm and all of it
    that got there; before, it has all that those have. An arm has ended behind the last number of any of its runs.
    What neither its own arm nor most runs have counts only in the metric that is compared.
    """
    of_arms = Counter(arm for arm, _ in runs)
    own = {(key, name): {at for at, _ in each[name] if at is not None} for key, each in runs.items() for name in each}
    having = Counter((name, at, key[0]) for (key, name), ats in own.items() for at in ats)
    of_all = Counter((name, at) for (_, name), ats in own.items() for at in ats)
    empty = {each: ats - own.get(each, set()) for each, ats in empty.items() if each[0] in runs}
    lacked = {(name, at, key[0]) for (key, name), ats in empty.items() for at in ats}
    ends = {arm: at for _, at, arm in sorted(having, key=lambda each: each[1])}
    most = lambda name, at, arm: max(2, of_arms[arm]) < 2 * having[name, at, arm]  # noqa: E731
    usual = {(name, at) for name, at, arm in having.keys() - lacked if most(name, at, arm)}
    usual |= {each for each, number in of_all.items() if 2 * number >= len(runs)}
    logged = {(key[0], name) for key, name in own}
    for (key, name), ats in empty.items():
        lacking = sorted(at for at in ats if (name, at) in usual and at <= ends.get(key[0], at))
        if lacking and lacking[0] > max(own.get((key, name), ()), default=-math.inf):
            runs.emptied.setdefault(name, {})[key] = lacking[0]
            shown = any(2 * of_all[name, at] > len(runs) or most(name, at, key[0]) for at in lacking)
            if shown and (key[0], name) in logged:
                runs[key].setdefault(name, []).append((lacking[-1], math.nan))


def _read(path: Path) -> tuple[list[str], list[_Row]]:
    try:
        refuse_endless(path)
        with path.open(newline="", encoding="utf-8-sig") as file:
            head = file.readline()
            delimiter = max(",;\t", key=head.count)
            file.seek(0)
            reader = csv.reader(file, delimiter=delimiter)
            columns = [from_csv(column.strip()) for column in next(reader, [])]
            if len(columns) > MOST_COLUMNS:
                raise StructuredInitError(
                    f"'{path}' has {len(columns):,} columns: more than {MOST_COLUMNS:,} is no table"
                )
            rows = []
            for cells in reader:
                if not any(cell.strip() for cell in cells):
                    continue
                if len(cells) != len(columns):
                    raise StructuredInitError(
                        f"'{path}', line {reader.line_num}: {len(cells)} cells, but the header has {len(columns)}"
                    )
                if delimiter != ",":  # as a spreadsheet writes numbers where a comma is the decimal point
                    cells = [re.sub(r"^\s*([-+]?\d+),(\d+\s*%?)\s*$", r"\1.\2", cell) for cell in cells]
                pairs = zip(columns, (from_csv(cell.strip()) for cell in cells), strict=True)
                rows.append(_Row(reader.line_num, dict(pairs)))
    except UnicodeDecodeError:
        raise StructuredInitError(f"'{path}' is not UTF-8 text: save it so") from None
    except (OSError, csv.Error) as error:
        raise StructuredInitError(f"cannot read '{path}' as a table: {error}") from None
    if not rows:
        raise StructuredInitError(f"'{path}' has no rows: {A_TABLE}")
    return columns, rows


def _key(path: Path, row: _Row, known: dict[str, str], by_name: bool, pattern: str | None) -> Key:
    if by_name:
        return named(row.cells[known[RUN]], pattern, {name: row.cells[column] for name, column in known.items()})
    arm, seed = row.cells[known["arm"]], whole(row.cells[known["seed"]])
    if not arm:
        raise StructuredInitError(f"'{path}', line {row.line}: the arm is empty")
    if seed is None:
        raise StructuredInitError(
            f"'{path}', line {row.line}: the seed '{row.cells[known['seed']]}' is not a whole number"
        )
    return arm, seed


def _number(path: Path, row: _Row, column: str) -> float:
    try:
        return float(row.cells[column].removesuffix("%"))
    except ValueError:
        raise StructuredInitError(
            f"'{path}', line {row.line}: '{row.cells[column]}' in the column '{column}' is not a number:"
            " leave out the row of a run that was lost, and the cell empty of one that ended without a number"
        ) from None


def _numbers(path: Path, rows: Sequence[_Row], column: str) -> bool:
    """Tell whether a column is a metric: it holds numbers."""
    numbers, others = 0, []
    for row in rows:
        try:
            numbers += math.isfinite(float(row.cells[column].removesuffix("%") or "nan"))
        except ValueError:
            others.append(row)
    if numbers > len(others) > 0:
        _number(path, others[0], column)
    return numbers > len(others)


def _refuse_settings(arm: str | None, seed: str | None) -> None:
    if arm or seed:
        raise StructuredInitError(
            f"--{'arm' if arm else 'seed'} names a column of a table, or a setting of Lightning's, TensorBoard's or "
            "MLflow's logs: say how these runs are named, as in --runs '{arm}/{seed}'"
        )


def _chart(path: Path, columns: list[str], rows: list[_Row], pattern: str | None) -> Runs:
    over = columns[0].lower().rpartition("/")[2]
    if over not in (*STEPS, EPOCH):
        raise StructuredInitError(f"'{path}' is a chart over '{columns[0]}': export one over steps or epochs")
    logged: dict[str, Logged] = {}
    for column in columns[1:]:
        run, _, metric = column.rpartition(" - ")
        if run and not metric.startswith("_") and not column.endswith(EXTREMES):  # _step is no metric
            values = [(_number(path, row, columns[0]), _number(path, row, column)) for row in rows if row.cells[column]]
            logged.setdefault(run, {}).update({metric: values} if values else {})
    runs = collected((run, named(run, pattern), metrics) for run, metrics in logged.items())
    runs.counted = "epochs" if over == EPOCH else runs.counted
    return runs


def read_wandb(path: Path, pattern: str | None = None, seed: str | None = None, arm: str | None = None) -> Runs:
    """Return the runs of a file, or of all files of a folder."""
    _refuse_settings(arm, seed)
    found: list[tuple[str, Key, Logged]] = []
    empty: dict[tuple[Key, str], set[float]] = {}
    files = [path] if path.is_file() else sorted(file for end in ("json", "jsonl") for file in path.rglob(f"*.{end}"))
    for file in filter(Path.is_file, files):
        name = file.stem if path.is_file() else file.relative_to(path).with_suffix("").as_posix()
        content = _content(file)
        several = isinstance(content, Mapping) and all(map(_is_rows, content.values()))
        for run, rows in content.items() if several else [(name, content)]:
            key = named(run, pattern)
            logged, without = _history(rows, file)
            found.append((run, key, logged))
            empty |= {(key, name): ats for name, ats in without.items()}
    runs = collected(found)
    _end_without_numbers(runs, empty)
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


def _history(content: Any, file: Path) -> tuple[Logged, dict[str, set[float]]]:
    """Return the numbers of a history, and the steps at which each name has null, which pandas writes for NaN.

    Names with an underscore before them are Weights & Biases' own.
    """
    rows = content
    if isinstance(content, Mapping) and content and all(isinstance(column, Mapping) for column in content.values()):
        places = dict.fromkeys(place for column in content.values() for place in column)
        rows = [{name: column.get(place) for name, column in content.items()} for place in places]
    if not _is_rows(rows):
        raise StructuredInitError(
            f'\'{file}\' is not a history of a run: it should be a list of rows such as {{"{STEP}": 0, "loss": 1.2}}'
        )
    found: Logged = {}
    empty: dict[str, set[float]] = {}
    for row in rows:
        step = row.get(STEP)
        at = as_float(step) if isinstance(step, (int, float)) else None
        for name, value in row.items():
            if value is None and at is not None:
                empty.setdefault(name, set()).add(at)
            number = math.nan if value in ("NaN", "Infinity", "-Infinity") else value
            if not name.startswith("_") and isinstance(number, (int, float)) and not isinstance(number, bool):
                found.setdefault(name, []).append((at, as_float(number)))
    return found, empty

"""What the cells of a table say: a run, a step, a number. What they do not say is refused with its place."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from comparison.runs.elsewhere.tables import STEPS, column, last_part
from comparison.runs.metric import ROUNDED_SHARE, Metric
from structured_init.util.errors import StructuredInitError, nearest

STOPPED = ("crashed", "failed", "killed")
STATES = ("", "finished", *STOPPED, "running", "pending", "scheduled")  # of Weights & Biases and of MLflow
NUMBER = r"(?i:[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?\s*%?|nan|[-+]?inf(inity)?)"
LIKE_NUMBER = r"(?i:[-+]?[\d,_]*\.?[\d,_]*(e[-+]?\d+)?\s*%?|nan|[-+]?inf(inity)?)"  # also what is refused later
WHOLE = r"[-+]?\d{1,18}(\.0*)?"


class Values(NamedTuple):
    """What runs logged.

    ``table`` has a row per number, by run and step: ``arm``, ``seed``, ``step`` (NaN where none is known), ``metric``,
    ``value`` (of an accuracy a fraction).
    """

    table: pd.DataFrame
    metric: str  # that is compared
    names: list[str]  # of all metrics
    runs: list[tuple[str, int]]  # arm and seed, in the order of the table, also of runs without a value
    counted: str  # what steps are: "optimizer steps" or "epochs"
    left_out: list[str]  # what was left out and why, a sentence each


def read_values(path: Path, rows: pd.DataFrame, metric: str | None) -> Values:
    """Return the numbers in the cells of a table, which has the columns ``arm`` and ``seed``.

    Raises:
        StructuredInitError: a cell does not say what it is, or a metric has to be chosen.
    """
    step = next((name for each in STEPS for name in rows if last_part(name.lower()) == each), None)
    cells = _long(path, rows, step, metric)
    tracked = (cells["state"] != "").any()
    cells, left_out = _counting(path, cells, metric)
    stepped = step is not None and cells.duplicated(["arm", "seed", "metric"]).any()
    if stepped:
        strange = cells[~cells["step"].str.fullmatch(NUMBER)]
        if len(strange):
            place, text = strange[["place", "step"]].iloc[0]
            raise StructuredInitError(f"'{path}', {place}: the step '{text[:40]}' is not a number")
    cells["step"] = cells["step"].astype(float) if stepped else math.nan
    _refuse_runs_twice(path, cells[cells["text"] != ""], "" if step else "add a column step, ")
    of_run = cells.groupby(["arm", "seed"], sort=False)
    of_names = dict(tuple(cells.assign(run=of_run.ngroup()).groupby("metric", sort=False)))
    chosen = _chosen(path, list(of_names), metric)
    if stepped:
        _refuse_open_ends(path, of_names[chosen], chosen)
    elif not tracked:  # as pandas writes NaN; a tracker writes it out, and leaves empty what was not logged
        of_names[chosen] = of_names[chosen].replace({"text": {"": "nan"}})
    parts = []
    for name, part in of_names.items():
        logged = part[part["text"] != ""]
        values, wrong = _values(logged, Metric(name))
        if wrong and name == chosen:
            raise StructuredInitError(f"'{path}', {wrong}")
        if not wrong:
            parts.append(logged.assign(value=values))
    table = pd.concat(parts).sort_values(["run", "step"], kind="stable")
    counted = "epochs" if step and last_part(step.lower()) == "epoch" else "optimizer steps"
    return Values(table, chosen, list(of_names), list(of_run.groups), counted, left_out)


def _long(path: Path, rows: pd.DataFrame, step: str | None, compared: str | None) -> pd.DataFrame:
    """Return a row per cell: ``arm``, ``seed``, ``step``, ``metric``, ``text``, its ``place``, the run's ``state``."""
    runs = rows[["arm", "seed"]].assign(place=rows.index, step=rows[step] if step else "")
    state = column(rows, "state") or column(rows, "status")
    runs["state"] = rows[state].str.lower() if state else ""
    if not runs["state"].isin(STATES).all():
        runs["state"] = ""
    metric, value = column(rows, "metric"), column(rows, "value")
    if metric and value:
        return runs.assign(metric=rows[metric], text=rows[value]).reset_index(drop=True)
    others = [name for name in rows if last_part(name.lower()) not in ("", "arm", "seed", *STEPS)]  # "": of pandas
    names = [name for name in others if name == compared or _is_numeric(rows[name])]
    if not names:
        raise StructuredInitError(f"'{path}' has no column of numbers beside arm, seed and step")
    return pd.concat([runs.assign(metric=name, text=rows[name]) for name in names], ignore_index=True)


def _counting(path: Path, cells: pd.DataFrame, metric: str | None) -> tuple[pd.DataFrame, list[str]]:
    """Return the cells of runs that count, and why others do not: runs that have not ended, and parents of sweeps.

    A run that stopped without a number has diverged, and counts. A parent has no arm or no seed, and no value.
    """
    reason = pd.Series("", cells.index)
    diverged = cells["place"].isin(cells["place"][cells["text"].str.lower() == "nan"])
    for state in {*cells["state"]} - {"", "finished"}:
        reason[(cells["state"] == state) & ~(diverged & (state in STOPPED))] = f"their state is '{state}'"
    seeds = {text: int(text.partition(".")[0]) for text in cells["seed"].unique() if re.fullmatch(WHOLE, text)}
    unknown = (reason == "") & ((cells["arm"] == "") | ~cells["seed"].isin(seeds))
    wrong = cells[unknown & (cells["text"] != "") & ((cells["metric"] == metric) | (metric is None))]
    if len(wrong):
        place, label, number = wrong[["place", "arm", "seed"]].iloc[0]
        raise StructuredInitError(
            f"'{path}', {place}: arm '{label[:40]}' and seed '{number[:40]}' are no name and whole number: name runs "
            "as in mimetic_seed_0, or say how they are named, --runs '{arm}-{seed}', or which columns or settings "
            "tell, --arm NAME --seed NAME"
        )
    reason[unknown] = "they have no value"
    left_out: list[str] = []
    for why, left in cells[reason != ""].groupby(reason):
        known = (left["arm"] != "") & (left["seed"] != "")
        names = (left["arm"] + " seed " + left["seed"]).where(known, left["place"])
        left_out.append(f"Left out, as {why}: {', '.join(names.unique())}.")
    if (reason != "").all():
        raise StructuredInitError(f"'{path}' has no run that counts: {' '.join(left_out)}")
    cells = cells[reason == ""]
    return cells.assign(seed=cells["seed"].map(seeds).astype(int)), left_out


def _is_numeric(column: pd.Series) -> bool:
    """Tell whether a column is meant as numbers: at least half of what it holds looks like one, and anything does."""
    filled = column[column != ""]
    numbers = filled.str.fullmatch(LIKE_NUMBER).sum()
    return bool(0 < numbers >= len(filled) - numbers)


def _refuse_runs_twice(path: Path, logged: pd.DataFrame, how: str) -> None:
    of_value = ["arm", "seed", "step", "metric"]
    twice = logged[logged.duplicated(of_value, keep=False)]
    for (arm, seed, *_), same in twice.groupby(of_value, dropna=False):
        raise StructuredInitError(
            f"'{path}', {' and '.join(same['place'].iloc[:2])}: arm '{arm}', seed {seed} occurs twice: {how}keep one "
            "of the two, name other columns (--arm COLUMN --seed COLUMN), or make a table for each value of another "
            "setting in which they differ"
        )


def _chosen(path: Path, names: list[str], metric: str | None) -> str:
    if metric is not None:
        if metric not in names:
            raise StructuredInitError(f"'{path}' has no metric '{metric}': {nearest(metric, names)}")
        return metric
    likely = [name for name in names if "test" in name.lower()] if len(names) > 1 else names
    if len(likely) != 1:
        shown = ", ".join(f"'{name}'" for name in names[:8]) + (", …" if len(names) > 8 else "")
        raise StructuredInitError(f"'{path}' has several metrics, {shown}: choose one with --metric")
    return likely[0]


def _values(logged: pd.DataFrame, metric: Metric) -> tuple[pd.Series | None, str]:
    """Return the values of a metric; or None, and which cannot be known.

    An accuracy becomes a fraction, as it is logged here. A share that rounding took above 1 is none in percent: half
    precision does so by up to 0.8 %.
    """
    strange = logged[~logged["text"].str.fullmatch(NUMBER)]
    if len(strange):
        place, text = strange[["place", "text"]].iloc[0]
        return None, (
            f"{place}: '{text[:40]}' in the column '{metric.name}' is not a number: leave out the row of a run that "
            "was lost, and write nan for one that ended without a number"
        )
    numbers, signed = logged["text"].str.rstrip("% ").astype(float), logged["text"].str.endswith("%")
    finite, is_accuracy = numbers.abs() < math.inf, metric.factor == 100
    above = signed if signed.any() else is_accuracy & finite & (numbers > ROUNDED_SHARE)
    below = finite & ~above & (signed.any() | (numbers > 0))
    if above.any() and below.any() and (signed.any() or not metric.in_percent):
        place, text = logged[below][["place", "text"]].iloc[0]
        where, other = logged[above][["place", "text"]].iloc[0]
        return None, (
            f"{place}: {text} in the column '{metric.name}' stands beside {other} ({where}): write all as fractions, "
            f"or all in percent in a column '{metric.name} (%)'"
        )
    return numbers / 100 if is_accuracy and (above.any() or metric.in_percent) else numbers, ""


def _refuse_open_ends(path: Path, cells: pd.DataFrame, metric: str) -> None:
    """Refuse a run that ends with an empty cell where another of its arm has a number: pandas writes NaN so."""
    logged, empty = cells[cells["text"] != ""], cells[cells["text"] == ""]
    having = {*zip(logged["arm"], logged["step"], strict=True)}
    last = logged.groupby(["arm", "seed"])["step"].max().to_dict()
    for row in empty.itertuples():
        if (row.arm, row.step) in having and row.step > last.get((row.arm, row.seed), -math.inf):
            raise StructuredInitError(
                f"'{path}', {row.place}: {metric} of '{row.arm}', seed {row.seed}, is empty from step {row.step:,.0f} "
                "on, where others of the arm have a number: write nan if the run diverged (pandas: na_rep='nan'), or "
                "leave the run out if it was stopped"
            )

"""Runs that were made elsewhere: a comparison is put together from them as if it had been made here.

Nothing is guessed. What a table does not say, such as whether 0.85 beside 83 is a fraction, is refused with its place.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from comparison.intervals import FEWEST_FOR_INTERVAL
from comparison.runs.elsewhere.logs import read_logs
from comparison.runs.elsewhere.tables import STEPS, TABLES, Wanted, column, last_part, read_table
from comparison.runs.folder import Manifest, Run, usual_baseline
from comparison.runs.metric import ROUNDED_SHARE, Metric, mode_of
from comparison.runs.records import refuse_single_runs, result_row
from structured_init.util.errors import StructuredInitError, nearest

__all__ = ["Elsewhere", "Wanted", "read_elsewhere"]

RUN = ["arm", "seed"]
MOST_NAMED = 8  # runs or metrics in a sentence
EARLY = 0.9  # of the steps of most runs: one that ends before is left out
UNFINISHED = ("crashed", "failed", "killed", "running", "pending", "scheduled")  # states of Weights & Biases and MLflow
NUMBER = r"(?i:[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?|nan|[-+]?inf(inity)?)"
LIKE_NUMBER = r"(?i:[-+]?[\d,_]*\.?[\d,_]*(e[-+]?\d+)?\s*%?|nan|[-+]?inf(inity)?)"  # also what is refused later
WHOLE = r"[-+]?\d{1,18}(\.0*)?"


@dataclass(frozen=True)
class Elsewhere:
    """What a report reads of a comparison: see ``load_results`` and ``load_curves`` for the tables."""

    manifest: Manifest
    runs: list[Run]
    results: pd.DataFrame
    curves: pd.DataFrame


def read_elsewhere(path: Path, wanted: Wanted) -> Elsewhere:
    """Return the comparison that the runs of a table, or of a folder of ``CSVLogger``, make up.

    Final values are those at the last step. The arm ``default`` or ``baseline``, else the first, is the one that
    differences refer to.

    Raises:
        StructuredInitError: something is no table, no number, or does not say what it is; the message says where.
    """
    if not path.exists():
        beside = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
        raise StructuredInitError(f"there is no '{path}': {nearest(path.name, beside)}")
    pattern = wanted.runs or "{arm}{seed}"
    if pattern.count("{arm}") != 1 or pattern.count("{seed}") != 1:
        raise StructuredInitError(f"--runs '{pattern}' has to have {{arm}} and {{seed}} once each, as '{{arm}}/{{seed}}'")
    if path.suffix.lower() in TABLES and not path.is_dir():
        rows, remarks = read_table(path, wanted), []
    else:
        rows, remarks = read_logs(path, wanted)
    step = next((name for each in STEPS for name in rows if last_part(name.lower()) == each), None)
    counted = "epochs" if step and last_part(step.lower()) == "epoch" else "optimizer steps"
    cells = _cells(path, rows, step, wanted.metric)
    names = list(cells["metric"].unique())
    metric = _compared(path, names, wanted.metric)
    cells, left_out = _counting(path, cells, metric)
    started = list(cells.groupby(RUN, sort=False).groups)
    table = _numbers(path, cells, metric, has_steps=step is not None)
    records = [_run(path, *key, logged) for key, logged in table.groupby(RUN, sort=False)]
    diverged = {(run.arm, run.seed) for run in records if run.diverged([metric])}
    ends = table[table["metric"] == metric].groupby(RUN, sort=False)["step"].max()
    without = [key for key in started if key not in ends and key not in diverged]
    early, ended = _ended_early(ends[[key not in diverged for key in ends.index]], counted)
    runs = [key for key in started if key not in {*without, *early}]
    remarks += left_out
    if without:
        remarks.append(f"Left out, as they logged no {metric}: {_named(without)}.")
    if not runs:
        raise StructuredInitError(f"'{path}' has no run that logged {metric}. {' '.join(remarks)}")
    arms = list(dict.fromkeys(arm for arm, _ in runs))
    remarks += [*ended, *_one_run_each(runs)]
    manifest: dict[str, Any] = {
        **{"version": 1, "experiment": [(path if path.name.strip(".") else path.resolve()).stem], "arguments": []},
        **{"metric": metric, "mode": wanted.mode or mode_of(metric), "baseline": usual_baseline(arms) or arms[0]},
        **{"controls": {}, "arms": {arm: {} for arm in arms}, "seeds": sorted({int(seed) for _, seed in runs})},
        **{"grid": {}, "learning_rates": [], "source": str(path), "counted": counted, "remarks": remarks},
    }
    records = [run for run in records if (run.arm, run.seed) in runs]
    results = pd.DataFrame(result_row(run, True, [metric]) for run in records)
    return Elsewhere(manifest, records, results, _curves(table, records))


def _cells(path: Path, rows: pd.DataFrame, step: str | None, compared: str | None) -> pd.DataFrame:
    """Return a row per cell: ``arm``, ``seed``, ``step``, ``metric``, ``text``, its ``place``, the run's ``state``."""
    state = column(rows, "state") or column(rows, "status")
    runs = rows[RUN].assign(place=rows.index, step=rows[step] if step else "", state=rows[state] if state else "")
    metric, value = column(rows, "metric"), column(rows, "value")
    if metric and value:
        return runs.assign(metric=rows[metric], text=rows[value]).reset_index(drop=True)
    parts = []
    for name in rows:
        filled = rows[name][rows[name] != ""]
        numbers = filled.str.fullmatch(LIKE_NUMBER).sum()
        is_metric = name == compared or 0 < len(filled) <= 2 * numbers
        if is_metric and last_part(name.lower()) not in ("", *RUN, *STEPS):  # pandas calls an index ""
            parts.append(runs.assign(metric=name, text=rows[name]))
    if not parts:
        raise StructuredInitError(f"'{path}' has no column of numbers beside arm, seed and step")
    return pd.concat(parts, ignore_index=True)


def _compared(path: Path, names: list[str], metric: str | None) -> str:
    """Return the metric that is compared: the one that was asked for, else the only one, or the only one of a test."""
    likely = [name for name in names if "test" in name.lower()] if len(names) > 1 else names
    if metric is None and len(likely) != 1:
        shown = ", ".join(f"'{name}'" for name in names[:MOST_NAMED])
        raise StructuredInitError(f"'{path}' has several metrics, {shown}: choose one with --metric")
    if metric not in (None, *names):
        raise StructuredInitError(f"'{path}' has no metric '{metric}': {nearest(str(metric), names)}")
    return metric or likely[0]


def _counting(path: Path, cells: pd.DataFrame, metric: str) -> tuple[pd.DataFrame, list[str]]:
    """Return the cells of runs that count, and why others do not: runs that have not ended, and parents of sweeps.

    A run that stopped without a number has diverged, and counts. A parent has no arm or no seed, and no value.
    """
    reason = pd.Series("", cells.index)
    lost = cells["place"].isin(cells["place"][cells["text"].str.lower() == "nan"])
    states = cells["state"].str.lower()
    unfinished = states.isin(UNFINISHED) & ~lost
    reason[unfinished] = "their state is '" + states[unfinished] + "'"
    unknown = (reason == "") & ((cells["arm"] == "") | ~cells["seed"].str.fullmatch(WHOLE))
    for cell in cells[unknown & (cells["text"] != "") & (cells["metric"] == metric)].itertuples():
        raise StructuredInitError(
            f"'{path}', {cell.place}: arm '{cell.arm[:40]}' and seed '{cell.seed[:40]}' are no name and whole number: "
            "name runs as in mimetic_seed_0, or say how they are named, --runs '{arm}-{seed}', or which columns or "
            "settings tell, --arm NAME --seed NAME"
        )
    reason[unknown] = "they have no value"
    left_out: list[str] = []
    for why, left in cells[reason != ""].groupby(reason):
        known = (left["arm"] != "") & (left["seed"] != "")
        names = (left["arm"] + " seed " + left["seed"]).where(known, left["place"])
        left_out.append(f"Left out, as {why}: {', '.join(names.unique())}.")
    cells = cells[reason == ""]
    if cells.empty:
        raise StructuredInitError(f"'{path}' has no run that counts: {' '.join(left_out)}")
    return cells.assign(seed=cells["seed"].astype(float).astype(int)), left_out


def _numbers(path: Path, cells: pd.DataFrame, metric: str, has_steps: bool) -> pd.DataFrame:
    """Return a row per number, by run and step: ``step`` (NaN where each run has one row), ``metric``, ``value``."""
    steps = pd.to_numeric(cells["step"], errors="coerce").astype(float)
    if not has_steps or not cells.duplicated([*RUN, "metric"]).any():
        steps[:] = math.nan
        if (cells["state"] == "").all():  # as pandas writes NaN; a tracker writes it out, and leaves out what was not
            cells = cells.assign(text=cells["text"].mask((cells["metric"] == metric) & (cells["text"] == ""), "nan"))
    else:
        for cell in cells[steps.isna()].itertuples():
            raise StructuredInitError(f"'{path}', {cell.place}: the step '{cell.step[:40]}' is not a number")
    cells = cells.assign(step=steps, run=cells.groupby(RUN, sort=False).ngroup())
    cells = cells[cells["text"] != ""]
    for (arm, seed, *_), same in cells.groupby([*RUN, "step", "metric"], dropna=False):
        if len(same) > 1:
            how = "" if has_steps else "add a column step, "
            raise StructuredInitError(
                f"'{path}', {' and '.join(same['place'].iloc[:2])}: arm '{arm}', seed {seed} occurs twice: {how}keep "
                "one of the two, name other columns (--arm COLUMN --seed COLUMN), or make a table for each value of "
                "another setting in which they differ"
            )
    parts = []
    for name, logged in cells.groupby("metric", sort=False):
        wrong = _wrong(logged, Metric(str(name)))
        if wrong and name == metric:
            raise StructuredInitError(f"'{path}', {wrong}")
        if not wrong:
            parts.append(logged.assign(value=_values(logged, Metric(str(name)))))
    return pd.concat(parts).sort_values(["run", "step"], kind="stable")


def _wrong(logged: pd.DataFrame, metric: Metric) -> str:
    """Return which of the cells of a metric cannot be known, and why; nothing where all can."""
    for cell in logged[~logged["text"].str.fullmatch(NUMBER)].itertuples():
        return (
            f"{cell.place}: '{cell.text[:40]}' in the column '{metric.name}' is not a number: leave out the row of a "
            "run that was lost, and write nan for one that ended without a number"
        )
    numbers = logged["text"].astype(float)
    percent = logged[(numbers > ROUNDED_SHARE) & (numbers < math.inf)]
    fractions = logged[(numbers > 0) & (numbers <= ROUNDED_SHARE)]
    if metric.factor != 100 or metric.in_percent or percent.empty or fractions.empty:
        return ""
    one, other = fractions.iloc[0], percent.iloc[0]
    return (
        f"{one.place}: {one.text} in the column '{metric.name}' stands beside {other.text} ({other.place}): write all "
        f"as fractions, or all in percent in a column '{metric.name} (%)'"
    )


def _values(logged: pd.DataFrame, metric: Metric) -> pd.Series:
    """Return the values of a metric; an accuracy as a fraction, as it is logged here.

    What rounding makes of 1 is none in percent: half precision adds up to 0.8 %.
    """
    numbers = logged["text"].astype(float)
    above = (numbers > ROUNDED_SHARE) & (numbers < math.inf)
    return numbers / 100 if metric.factor == 100 and (above.any() or metric.in_percent) else numbers


def _ended_early(ends: pd.Series, counted: str) -> tuple[Collection[tuple[str, int]], list[str]]:
    """Return the runs that end long before most do and count for nothing, and what is to be said of different ends.

    ``ends`` are those of runs that did not diverge. Where all runs of an arm end early, or no end is that of most runs,
    as with early stopping, all count.
    """
    ends, step = ends.dropna(), counted.rpartition(" ")[2].removesuffix("s")
    remarks = []
    usual, runs_of_it = Counter(ends).most_common(1)[0] if len(ends) else (0.0, 0)
    last = ends.groupby("arm").max().reindex(ends.index, level="arm")
    is_early = (ends < EARLY * usual) & (last >= EARLY * usual) & (2 * runs_of_it > len(ends))
    early, rest = ends[is_early], ends[~is_early]
    if len(early):
        steps = ", ".join(f"{end:,.0f}" for end in early)
        named = f"{_named(early.index)}, at {step} {steps} where most runs end at {usual:,.0f}"
        way_out = "Run them to the end, or write nan where they diverged; a table without steps takes any end."
        remarks.append(f"Ended early and left out: {named}. {way_out}")
    if rest.min() < EARLY * rest.max():
        of_arms = []
        for arm, of_arm in rest.groupby("arm", sort=False):
            of_arms.append(f"{arm} at {', '.join(f'{end:,.0f}' for end in sorted({*of_arm}))}")
        said = f"Runs do not end at the same {step}: {'; '.join(of_arms)}"
        remarks.append(f"{said}. What is compared is the last value of each.")
    return {*early.index}, remarks


def _one_run_each(runs: Collection[tuple[str, int]]) -> list[str]:
    """Say which seeds are missing where each arm has one run; refuse runs that may be seeds of one arm."""
    arms, seeds = Counter(arm for arm, _ in runs), {seed for _, seed in runs}
    if len(seeds) > 1:
        refuse_single_runs(arms)
    if len(arms) < len(runs) or len(arms) < 2:
        return []
    wanted = sorted({*seeds, *range(min(seeds), min(seeds) + FEWEST_FOR_INTERVAL)})
    missing = [(arm, seed) for arm in arms for seed in wanted if (arm, seed) not in runs]
    shown = f"{_named(missing[:MOST_NAMED])}{', …' if len(missing) > MOST_NAMED else ''}"
    return [f"Each arm has one run; an interval needs three seeds that both arms have. Missing: {shown}."]


def _named(runs: Collection[tuple[str, int]]) -> str:
    return ", ".join(f"{arm} seed {seed}" for arm, seed in runs)


def _run(path: Path, arm: str, seed: int, logged: pd.DataFrame) -> Run:
    final = dict(zip(logged["metric"], logged["value"], strict=True))  # the last of each
    steps = logged["step"].max()
    result = {"metrics": final, "epochs": None, "steps": None if math.isnan(steps) else steps, "seconds": None}
    return Run(arm, int(seed), (), None, path / "runs" / arm / f"seed_{seed}", result=result)


def _curves(table: pd.DataFrame, runs: Collection[Run]) -> pd.DataFrame:
    """Return the curves of runs, as ``load_curves`` does; one value is no curve."""
    table = table[pd.MultiIndex.from_frame(table[RUN]).isin([(run.arm, run.seed) for run in runs])]
    unknown = {"learning_rate": math.nan, "chosen": True, "epoch": 0, "seconds": math.nan}
    several = table.duplicated([*RUN, "metric"], keep=False) & table["step"].notna()
    columns = [*RUN, "learning_rate", "chosen", "epoch", "step", "seconds", "metric", "value"]
    return table[several].assign(**unknown)[columns].reset_index(drop=True)

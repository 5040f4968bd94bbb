"""Runs that were made elsewhere: a comparison is put together from them as if it had been made here.

Nothing is guessed. What a table does not say, such as whether 0.85 beside 83 is a fraction, is refused with its place.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from comparison.intervals import FEWEST_FOR_INTERVAL
from comparison.runs.elsewhere.logs import read_logs
from comparison.runs.elsewhere.tables import TABLES, Wanted, last_part, read_table
from comparison.runs.elsewhere.values import RUN, read_values
from comparison.runs.folder import Manifest, Run, usual_baseline
from comparison.runs.metric import mode_of
from comparison.runs.records import result_row
from structured_init.util.errors import StructuredInitError, nearest

MOST_NAMED = 8  # runs or metrics in a sentence
EARLY = 0.9  # of the steps of most runs: one that ends before is left out
WHOLE = r"[-+]?\d{1,18}(\.0*)?"


@dataclass(frozen=True)
class Compared:
    """What is compared, and its runs: see ``load_results`` and ``load_curves`` for the tables."""

    manifest: Manifest
    runs: list[Run]
    results: pd.DataFrame
    curves: pd.DataFrame | None = None  # of a comparison they are read where they are needed


def read_elsewhere(path: Path, wanted: Wanted) -> Compared:
    """Return the comparison that the runs of a table, or of a folder of ``CSVLogger``, make up.

    Final values are those at the last step. The arm ``default`` or ``baseline``, else the first, is the one that
    differences refer to.

    Raises:
        StructuredInitError: something is no table, no number, or does not say what it is; the message says where.
    """
    if not os.path.exists(path):  # also of a name that is too long
        beside = [each.name for each in path.parent.glob("*")]
        raise StructuredInitError(f"there is no '{path}': {nearest(path.name, beside)}")
    is_table = path.suffix.lower() in TABLES and not path.is_dir()
    cells = read_table(path, wanted) if is_table else read_logs(path, wanted)
    counted = "epochs" if last_part(cells.step or "").lower() == "epoch" else "optimizer steps"
    metric = _compared(path, list(cells.table["metric"].unique()), wanted.metric)
    remarks = list(cells.left_out)
    table = _leave_out_unknown(path, cells.table, metric, remarks)
    values = read_values(path, cells._replace(table=table), metric)
    runs = _ended_runs(path, table, values, metric, remarks)
    runs = _leave_out_early(runs, values, metric, counted, remarks)
    if not runs:
        raise StructuredInitError(f"'{path}' has no run that logged {metric}. {' '.join(remarks)}")
    keys = [(run.arm, run.seed) for run in runs]
    arms = list(dict.fromkeys(run.arm for run in runs))
    _note_single_runs(keys, remarks)
    manifest = Manifest(
        experiment=[path.resolve().stem],
        arms={arm: {} for arm in arms},
        seeds=sorted({run.seed for run in runs}),
        metric=metric,
        mode=wanted.mode or mode_of(metric),
        baseline=usual_baseline(arms) or arms[0],
        source=str(path),
        counted=counted,
        remarks=remarks,
    )
    results = pd.DataFrame(result_row(run, True, [metric]) for run in runs)
    return Compared(manifest, runs, results, _curves(values, keys))


def _compared(path: Path, names: list[str], metric: str | None) -> str:
    """Return the metric that is compared: the one that was asked for, else the only one, or the only one of a test."""
    if metric is not None:
        if metric not in names:
            raise StructuredInitError(f"'{path}' has no metric '{metric}': {nearest(metric, names)}")
        return metric
    likely = [name for name in names if "test" in name.lower()] if len(names) > 1 else names
    if len(likely) != 1:
        shown = ", ".join(f"'{name}'" for name in names[:MOST_NAMED])
        raise StructuredInitError(f"'{path}' has several metrics, {shown}: choose one with --metric")
    return likely[0]


def _leave_out_unknown(path: Path, table: pd.DataFrame, metric: str, remarks: list[str]) -> pd.DataFrame:
    """Return the cells of runs with a name and a seed; others, parents of sweeps, have no value."""
    unknown = (table["arm"] == "") | ~table["seed"].str.fullmatch(WHOLE)
    for cell in table[unknown & (table["text"] != "") & (table["metric"] == metric)].itertuples():
        raise StructuredInitError(
            f"'{path}', {cell.Index}: arm '{cell.arm[:40]}' and seed '{cell.seed[:40]}' are no name and whole number: "
            "name runs as in mimetic_seed_0, or say which columns or settings tell, --arm NAME --seed NAME"
        )
    if unknown.any():
        remarks.append(f"Left out, as they have no value: {', '.join(table.index[unknown].unique())}.")
    table = table[~unknown]
    return table.assign(seed=table["seed"].astype(float).astype(int))


def _ended_runs(path: Path, table: pd.DataFrame, values: pd.DataFrame, metric: str, remarks: list[str]) -> list[Run]:
    """Return the runs that logged the metric or diverged, in the order of the table."""
    logged = dict(iter(values.groupby(RUN)))
    runs = []
    without = []
    for arm, seed in table.groupby(RUN, sort=False).groups:
        of_run = logged.get((arm, seed), values[:0])
        final = dict(zip(of_run["metric"], of_run["value"], strict=True))  # the last of each
        steps = of_run["step"].max()
        result = {"metrics": final, "epochs": None, "steps": None if math.isnan(steps) else steps, "seconds": None}
        run = Run(arm, seed, (), None, path / "runs" / arm / f"seed_{seed}", result=result)
        if metric in final or run.diverged([metric]):
            runs.append(run)
        else:
            without.append((arm, seed))
    if without:
        remarks.append(f"Left out, as they logged no {metric} or have not ended: {_named(without)}.")
    return runs


def _leave_out_early(runs: list[Run], values: pd.DataFrame, metric: str, counted: str, remarks: list[str]) -> list[Run]:
    """Return the runs but for those that end long before most do; a run that diverged may end anywhere.

    Where all runs of an arm end early, or no end is that of most runs, as with early stopping, all count.
    """
    diverged = [(run.arm, run.seed) for run in runs if run.diverged([metric])]
    ends = values[values["metric"] == metric].groupby(RUN)["step"].max().dropna()
    ends = ends[~ends.index.isin(diverged)]
    if ends.empty:
        return runs
    step = counted.rpartition(" ")[2].removesuffix("s")
    usual, runs_of_it = Counter(ends).most_common(1)[0]
    last = ends.groupby("arm").transform("max")
    is_early = (ends < EARLY * usual) & (last >= EARLY * usual) & (2 * runs_of_it > len(ends))
    early, rest = ends[is_early], ends[~is_early]
    if len(early):
        steps = ", ".join(f"{end:,.0f}" for end in early)
        remarks.append(
            f"Ended early and left out: {_named(early.index)}, at {step} {steps} where most runs end at {usual:,.0f}. "
            "Run them to the end, or write nan where they diverged; a table without steps takes any end."
        )
    if rest.min() < EARLY * rest.max():
        arms = [f"{arm} at {end:,.0f}" for arm, end in rest.groupby("arm", sort=False).max().items()]
        remarks.append(
            f"Runs end at different {step}s, from {rest.min():,.0f} on; the last of each arm: {', '.join(arms)}. What "
            "is compared is the last value of each run."
        )
    return [run for run in runs if (run.arm, run.seed) not in early.index]


def _note_single_runs(runs: Collection[tuple[str, int]], remarks: list[str]) -> None:
    """Say which seeds are missing where each arm has one run."""
    arms, seeds = Counter(arm for arm, _ in runs), {seed for _, seed in runs}
    if len(arms) < len(runs) or len(arms) < 2:
        return
    wanted = sorted({*seeds, *range(min(seeds), min(seeds) + FEWEST_FOR_INTERVAL)})
    missing = [(arm, seed) for arm in arms for seed in wanted if (arm, seed) not in runs]
    shown = f"{_named(missing[:MOST_NAMED])}{', …' if len(missing) > MOST_NAMED else ''}"
    remarks.append(f"Each arm has one run; an interval needs three seeds that both arms have. Missing: {shown}.")


def _named(runs: Collection[tuple[str, int]]) -> str:
    return ", ".join(f"{arm} seed {seed}" for arm, seed in runs)


def _curves(values: pd.DataFrame, runs: Collection[tuple[str, int]]) -> pd.DataFrame:
    """Return the curves of runs, as ``load_curves`` does; one value is no curve."""
    counting = pd.MultiIndex.from_frame(values[RUN]).isin(runs)
    several = values.duplicated([*RUN, "metric"], keep=False) & values["step"].notna()
    unknown = {"learning_rate": math.nan, "chosen": True, "epoch": 0, "seconds": math.nan}
    columns = [*RUN, "learning_rate", "chosen", "epoch", "step", "seconds", "metric", "value"]
    return values[counting & several].assign(**unknown)[columns].reset_index(drop=True)

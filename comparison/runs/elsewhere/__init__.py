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

from comparison.runs.elsewhere.cells import read_values
from comparison.runs.elsewhere.logs import read_logs
from comparison.runs.elsewhere.tables import TABLES, read_table
from comparison.runs.folder import Manifest, Run, usual_baseline
from comparison.runs.metric import direction, mode_of
from comparison.intervals import FEWEST_FOR_INTERVAL
from comparison.runs.records import refuse_single_runs, result_row
from structured_init.util.errors import StructuredInitError, nearest

__all__ = ["Elsewhere", "read_elsewhere"]

Key = tuple[str, int]  # arm and seed
MOST_NAMED = 8  # runs or metrics in a sentence
EARLY = 0.9  # of the steps of most runs: one that ends before is left out
WAY_OUT = "Run it to the end; if it was to end there, give a table of last values, without steps."


@dataclass(frozen=True)
class Elsewhere:
    """What a report reads of a comparison: see ``load_results`` and ``load_curves`` for the tables."""

    manifest: Manifest
    runs: list[Run]
    results: pd.DataFrame
    curves: pd.DataFrame


def read_elsewhere(
    path: Path,
    metric: str | None = None,
    mode: str | None = None,
    names: str | None = None,
    seed: str | None = None,
    arm: str | None = None,
) -> Elsewhere:
    """Return the comparison that runs make up: final values are those at the last step.

    The arm ``default`` or ``baseline``, else the first, is the one that differences refer to.

    Args:
        path: a table, or a folder of logs of Lightning's ``CSVLogger``.
        metric: what is compared; may be None if there is one, or one whose name has ``test``.
        mode: ``"max"`` or ``"min"``; by the metric's name when None.
        names: how runs are named, such as ``{arm}/seed_{seed}``.
        seed: the column or setting that is the seed; ``seed`` or the like when None.
        arm: the column or setting that is the arm; the column ``arm``, or the folders' names, when None.

    Raises:
        StructuredInitError: something is no table, no number, or does not say what it is; the message says where.
    """
    if not path.exists():
        beside = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
        raise StructuredInitError(f"there is no '{path}': {nearest(path.name, beside)}")
    if names and (names.count("{arm}") != 1 or names.count("{seed}") != 1):
        raise StructuredInitError(f"--runs '{names}' has to have {{arm}} and {{seed}} once each, as '{{arm}}/{{seed}}'")
    if path.suffix.lower() in TABLES and not path.is_dir():
        rows, remarks = read_table(path, names, seed, arm), []
    else:
        rows, remarks = read_logs(path, names, seed, arm)
    read = read_values(path, rows, metric)
    table, chosen = read.table, read.metric
    records = [_run(path, *key, logged) for key, logged in table.groupby(["arm", "seed"], sort=False)]
    diverged = {(run.arm, run.seed) for run in records if run.diverged([chosen])}
    ends = table[table["metric"] == chosen].groupby(["arm", "seed"], sort=False)["step"].max()
    without = [key for key in read.runs if key not in ends and key not in diverged]
    early, ended = _ended_early(ends[[key not in diverged for key in ends.index]], read.counted)
    runs = [key for key in read.runs if key not in {*without, *early}]
    remarks += read.left_out
    remarks += [f"Left out, as they logged no {chosen}: {_named(without)}."] if without else []
    others = [name for name in read.names if name != chosen and direction(name)]
    if others and not metric:
        shown = f"{', '.join(others[:MOST_NAMED])}{', …' if len(others) > MOST_NAMED else ''}"
        remarks.insert(0, f"{chosen} is compared; --metric chooses another: {shown}.")
    if not runs:
        raise StructuredInitError(f"'{path}' has no run that logged {chosen}. {' '.join(remarks)}")
    arms = list(dict.fromkeys(label for label, _ in runs))
    remarks += [*ended, *_one_run_each(runs)]
    manifest: dict[str, Any] = {
        **{"version": 1, "experiment": [(path if path.name.strip(".") else path.resolve()).stem], "arguments": []},
        **{"metric": chosen, "mode": mode or mode_of(chosen), "baseline": usual_baseline(arms) or arms[0]},
        **{"controls": {}, "arms": {label: {} for label in arms}, "seeds": sorted({number for _, number in runs})},
        **{"grid": {}, "learning_rates": [], "source": str(path), "counted": read.counted, "remarks": remarks},
    }
    records = [run for run in records if (run.arm, run.seed) in runs]
    results = pd.DataFrame(result_row(run, True, [chosen]) for run in records)
    return Elsewhere(manifest, records, results, _curves(table, records))


def _ended_early(ends: pd.Series, counted: str) -> tuple[Collection[Key], list[str]]:
    """Return the runs that end long before most do and count for nothing, and what is to be said of different ends.

    ``ends`` are those of runs that did not diverge. Where all runs of an arm end early, they count.
    """
    ends, step = ends.dropna(), counted.rpartition(" ")[2].removesuffix("s")
    if ends.empty or ends.min() >= EARLY * ends.max():
        return (), []
    usual, runs_of_it = Counter(ends).most_common(1)[0]
    early, on_time = ends[ends < EARLY * usual], ends[ends >= EARLY * usual]
    whole_arms = {*early.index.get_level_values("arm")} <= {*on_time.index.get_level_values("arm")}
    if len(early) and whole_arms and 2 * runs_of_it > len(ends):
        steps = ", ".join(f"{end:,.0f}" for end in early)
        named = f"{_named(early.index)}, at {step} {steps} where most runs end at {usual:,.0f}"
        return {*early.index}, [f"Ended early and left out: {named}. {WAY_OUT}"]
    of_arms = [
        f"{arm} at {', '.join(f'{end:,.0f}' for end in sorted({*of_arm}))}"
        for arm, of_arm in ends.groupby("arm", sort=False)
    ]
    said = f"Runs do not end at the same {step}: {'; '.join(of_arms)}. What is compared is the last value of each."
    return (), [said]


def _one_run_each(runs: Collection[Key]) -> list[str]:
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


def _named(runs: Collection[Key]) -> str:
    return ", ".join(f"{arm} seed {seed}" for arm, seed in runs)


def _run(path: Path, arm: str, seed: int, logged: pd.DataFrame) -> Run:
    final = dict(zip(logged["metric"], logged["value"], strict=True))  # the last of each
    steps = logged["step"].max()
    result = {"metrics": final, "epochs": None, "steps": None if math.isnan(steps) else steps, "seconds": None}
    return Run(arm, int(seed), (), None, path / "runs" / arm / f"seed_{seed}", result=result)


def _curves(table: pd.DataFrame, runs: Collection[Run]) -> pd.DataFrame:
    """Return the curves of runs, as ``load_curves`` does; one value is no curve."""
    table = table[pd.MultiIndex.from_frame(table[["arm", "seed"]]).isin([(run.arm, run.seed) for run in runs])]
    unknown = {"learning_rate": math.nan, "chosen": True, "epoch": 0, "samples": math.nan, "seconds": math.nan}
    several = table.duplicated(["arm", "seed", "metric"], keep=False) & table["step"].notna()
    columns = ["arm", "seed", "learning_rate", "chosen", "epoch", "step", "samples", "seconds", "metric", "value"]
    return table[several].assign(**unknown)[columns].reset_index(drop=True)

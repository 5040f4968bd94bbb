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

from comparison.results.controls import usual_baseline
from comparison.results.elsewhere.sources import NUMBER, Key, read_cells
from comparison.results.folder import Manifest, Run
from comparison.results.metric import ROUNDED_SHARE, Metric, direction, mode_of
from comparison.results.paired import FEWEST_FOR_INTERVAL
from comparison.results.records import result_row
from comparison.results.referee import refuse_single_runs
from structured_init.errors import StructuredInitError, nearest

__all__ = ["Elsewhere", "read_elsewhere"]

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
        path: a table or a folder of logs; see :mod:`comparison.results.elsewhere.sources`.
        metric: what is compared; may be None if there is one, or one whose name has ``test``.
        mode: ``"max"`` or ``"min"``; by the metric's name when None.
        names: how runs are named, such as ``{arm}/seed_{seed}``.
        seed: the column or setting that is the seed; ``seed`` or the like when None.
        arm: the column or setting that is the arm; the column ``arm``, or the folders' names, when None.

    Raises:
        StructuredInitError: something is no table, no number, or does not say what it is; the message says where.
    """
    cells = read_cells(path, metric, names, seed, arm)
    of_run = cells.table.groupby(["arm", "seed"], sort=False)
    every = list(of_run.groups)
    table, chosen, remarks = _numbers(path, cells.table.assign(run=of_run.ngroup()), metric)
    compared = table[table["metric"] == chosen]
    logged = {*zip(compared["arm"], compared["seed"], strict=True)}
    without = [key for key in every if key not in logged]
    remarks += [f"Left out, as they logged no {chosen}: {_named(without)}."] if without else []
    early, said = _ended_early(compared, cells.counted.rpartition(" ")[2].removesuffix("s"))
    runs = [key for key in every if key in logged and key not in early]
    arms = list(dict.fromkeys(label for label, _ in runs))
    remarks += [*said, *_one_run_each(runs), *cells.left_out]
    table = table[[key in runs for key in zip(table["arm"], table["seed"], strict=True)]]
    manifest: dict[str, Any] = {
        **{"version": 1, "experiment": [(path if path.name.strip(".") else path.resolve()).stem], "arguments": []},
        **{"metric": chosen, "mode": mode or mode_of(chosen), "baseline": usual_baseline(arms) or arms[0]},
        **{"controls": {}, "arms": {label: {} for label in arms}, "seeds": sorted({number for _, number in runs})},
        **{"grid": {}, "learning_rates": [], "source": str(path), "counted": cells.counted, "remarks": remarks},
    }
    records = [_run(path, *key, logged) for key, logged in table.groupby(["arm", "seed"], sort=False)]
    results = pd.DataFrame(result_row(run, True, [chosen]) for run in records)
    return Elsewhere(manifest, records, results, _curves(table))


def _numbers(path: Path, cells: pd.DataFrame, metric: str | None) -> tuple[pd.DataFrame, str, list[str]]:
    """Return the cells with their values, by run and step; the metric; and which others there are."""
    of_names = dict(tuple(cells.groupby("metric", sort=False)))
    chosen = _chosen(path, list(of_names), metric)
    _refuse_open_ends(path, of_names[chosen], chosen)
    parts = []
    for name, part in of_names.items():
        logged = part[part["text"] != ""]
        values, wrong = _values(logged, Metric(name))
        if wrong and name == chosen:
            raise StructuredInitError(f"'{path}', {wrong}")
        if not wrong:
            parts.append(logged.assign(value=values))
    others = [name for name in of_names if name != chosen and direction(name)]
    shown = f"{', '.join(others[:8])}{', …' if len(others) > 8 else ''}"
    remarks = [f"{chosen} is compared; --metric chooses another: {shown}."] if others and not metric else []
    return pd.concat(parts).sort_values(["run", "step"], kind="stable"), chosen, remarks


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


def _ended_early(compared: pd.DataFrame, step: str) -> tuple[Collection[Key], list[str]]:
    """Return the runs that end long before most do and count for nothing, and what is to be said of different ends.

    Runs that diverged may end at any step. Where all runs of an arm end early, they count.
    """
    last = compared.drop_duplicates(["arm", "seed"], keep="last").set_index(["arm", "seed"])
    ends = last["step"][last["value"].notna() & last["step"].notna()]
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
    arms, seeds = Counter(arm for arm, _ in runs), sorted({seed for _, seed in runs})
    if len(arms) < len(runs) or len(arms) < 2:
        return []
    if len(seeds) > 1:
        refuse_single_runs(arms)
        missing = [(arm, seed) for arm in arms for seed in seeds if (arm, seed) not in runs]
        return [f"Each arm has one run, and differences are of seeds that both arms have. Missing: {_named(missing)}."]
    more = ", ".join(str(seeds[0] + number) for number in range(1, FEWEST_FOR_INTERVAL))
    return [f"Each arm has one run, of seed {seeds[0]}: an interval needs two more seeds of each, such as {more}."]


def _named(runs: Collection[Key]) -> str:
    return ", ".join(f"{arm} seed {seed}" for arm, seed in runs)


def _run(path: Path, arm: str, seed: int, logged: pd.DataFrame) -> Run:
    final = dict(zip(logged["metric"], logged["value"], strict=True))  # the last of each
    steps = logged["step"].max()
    result = {"metrics": final, "epochs": None, "steps": None if math.isnan(steps) else steps, "seconds": None}
    return Run(arm, int(seed), (), None, path / "runs" / arm / f"seed_{seed}", result=result)


def _curves(table: pd.DataFrame) -> pd.DataFrame:
    """Return the curves of runs, as ``load_curves`` does; one value is no curve."""
    unknown = {"learning_rate": math.nan, "chosen": True, "epoch": 0, "samples": math.nan, "seconds": math.nan}
    several = table.duplicated(["arm", "seed", "metric"], keep=False) & table["step"].notna()
    columns = ["arm", "seed", "learning_rate", "chosen", "epoch", "step", "samples", "seconds", "metric", "value"]
    return table[several].assign(**unknown)[columns].reset_index(drop=True)

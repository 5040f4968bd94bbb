"""Runs that were made elsewhere: a table, logs of Lightning and TensorBoard, exports of Weights & Biases and MLflow.

Whatever they come from, runs are one mapping, :data:`Runs`, from which a comparison is put together as if it had been
made here: the same table, intervals and curves.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comparison.results.controls import usual_baseline
from comparison.results.elsewhere.logs import (
    EVENTS,
    METRICS,
    is_database,
    mlflow_runs,
    read_lightning,
    read_mlflow,
    read_mlflow_database,
    read_tensorboard,
)
from comparison.results.elsewhere.runs import Key, Logged, Runs, Values
from comparison.results.elsewhere.tables import read_table, read_wandb
from comparison.results.folder import Manifest, Run
from comparison.results.metric import ROUNDED_SHARE, Metric, direction, is_loss, mode_of
from comparison.results.records import result_row
from comparison.results.referee import refuse_single_runs
from structured_init.errors import StructuredInitError, nearest

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Elsewhere", "Runs", "comparison_of", "read_elsewhere"]
DATABASE = "mlflow.db"
TABLES, HISTORIES = (".csv", ".tsv"), (".json", ".jsonl")
EARLY = 0.9  # of the steps of most runs: one that ends before is left out
WAY_OUT = "Run it to the end; if it was to end there, give a table of last values, without steps."


def read_elsewhere(path: Path, pattern: str | None = None, seed: str | None = None, arm: str | None = None) -> Runs:
    """Return the runs of a table, a folder of event files, or an export."""
    if not path.exists():
        beside = [
            each.name
            for each in (path.parent.iterdir() if path.parent.is_dir() else ())
            if (each.is_dir() and each.name[0] != ".") or each.suffix.lower() in (*TABLES, *HISTORIES, ".db")
        ]
        raise StructuredInitError(f"there is no '{path}': {nearest(path.name, beside)}")
    if pattern and (pattern.count("{arm}") != 1 or pattern.count("{seed}") != 1):
        said = "has to have {arm} and {seed} once each, as in '{arm}/{seed}'"
        raise StructuredInitError(f"--runs '{pattern}' {said}")
    holds = lambda pattern: next(path.rglob(pattern), None) is not None  # noqa: E731
    if path.is_file():
        if path.suffix.lower() in TABLES:
            return read_table(path, pattern, seed, arm)
        if path.suffix.lower() in HISTORIES:
            return read_wandb(path, pattern, seed, arm)
        if is_database(path):
            return read_mlflow_database(path, pattern, seed, arm)
    elif holds(METRICS):
        return read_lightning(path, pattern, seed, arm)
    elif holds(EVENTS):
        return read_tensorboard(path, pattern, seed, arm)
    elif mlflow_runs(path):
        return read_mlflow(path, pattern, seed, arm)
    elif is_database(path / DATABASE):
        return read_mlflow_database(path / DATABASE, pattern, seed, arm)
    elif any(holds(f"*{end}") for end in HISTORIES):
        return read_wandb(path, pattern, seed, arm)
    if any(holds(f"*{end}") for end in TABLES):
        raise StructuredInitError(
            f"'{path}' holds tables: give one of them, or put them into one that has the columns arm and seed"
        )
    raise StructuredInitError(
        f"'{path}' cannot be read as results: give the folder of a comparison, a table (.csv) with the "
        "columns arm, seed and a metric, a folder of Lightning's CSVLogger or of TensorBoard's event files, MLflow's "
        "mlruns or its database mlflow.db, or histories of Weights & Biases (.json)"
    )


@dataclass(frozen=True)
class Elsewhere:
    """What a report reads of a comparison: see ``load_results`` and ``load_curves`` for the tables."""

    manifest: Manifest
    runs: list[Run]
    results: pd.DataFrame
    curves: pd.DataFrame


def comparison_of(path: Path, runs: Runs, metric: str | None = None, mode: str | None = None) -> Elsewhere:
    """Return the comparison that runs make up: final values are those at the last step.

    The arm ``default`` or ``baseline``, else the first, is the one that differences refer to.
    """
    import pandas as pd

    chosen = _metric(path, runs, metric)
    scaled = {
        key: {name: _fractions(name, values, runs) for name, values in logged.items()} for key, logged in runs.items()
    }
    for key, at in runs.emptied.get(chosen, {}).items():  # also where no run of the arm has a value
        if not _diverged({chosen: (values := scaled[key].get(chosen, []))}, chosen):
            scaled[key][chosen] = [*values, (at, math.nan)]
    for logged in scaled.values():  # a row without the value: the run ended without a number
        if path.suffix.lower() in TABLES and all(step is None for values in logged.values() for step, _ in values):
            logged.setdefault(chosen, [(None, math.nan)])
    without = [key for key, logged in scaled.items() if not (logged.get(chosen) or _diverged(logged, chosen))]
    scaled = {key: logged for key, logged in scaled.items() if key not in without}
    step = runs.counted.rpartition(" ")[2].removesuffix("s")
    early, ended = _ends(scaled, chosen, step)
    ended += [f"Left out, as they logged no {chosen}: {_named(without)}."] if without else []
    refuse_single_runs(Counter(arm for arm, _ in scaled))
    arms = list(dict.fromkeys(arm for arm, _ in scaled))
    reference = usual_baseline(arms) or arms[0]
    experiment = (path if path.name.strip(".") else path.resolve()).stem
    manifest: dict[str, Any] = {
        **{"version": 1, "experiment": [experiment], "arguments": [], "metric": chosen, "baseline": reference},
        **{"mode": mode or mode_of(chosen), "controls": {}, "arms": {arm: {} for arm in arms}},
        **{"seeds": sorted({seed for _, seed in scaled.keys() - {*early}}), "grid": {}, "learning_rates": []},
        "source": str(path),
        "remarks": [*([] if metric else _others(runs, chosen)), *_remarks(runs, chosen, step), *ended],
        "counted": runs.counted,
    }
    scaled = {key: logged for key, logged in scaled.items() if key not in early}
    records = [_record(path, arm, seed, logged) for (arm, seed), logged in scaled.items()]
    results = pd.DataFrame(result_row(run, True, [chosen]) for run in records)
    return Elsewhere(manifest, records, results, _curves(scaled))


def _remarks(runs: Runs, metric: str, step: str) -> list[str]:
    """Say which runs were left out, and which end with empty cells, a sentence each."""
    said: list[str] = []
    for name, emptied in runs.emptied.items():
        ends = [key for key in emptied if name == metric or _diverged({name: runs[key].get(name, [])}, metric)]
        if ends:
            where = ", ".join(f"{_named([key])} from {step} {emptied[key]:,.0f} on" for key in ends)
            said.append(f"No number in {name}, as pandas writes NaN: {where}. These runs count as diverged.")
    for state in dict.fromkeys(runs.left_out.values()):
        keys = [key for key, each in runs.left_out.items() if each == state and key not in runs]
        said += [f"Left out, as their state is '{state}': {_named(keys)}."] if keys else []
    return said


def _others(runs: Runs, metric: str) -> list[str]:
    """Say that there are other metrics than the one that was taken, in a sentence."""
    names = [n for n in dict.fromkeys(n for each in runs.values() for n in each) if n != metric and direction(n)]
    shown = f"{', '.join(names[:8])}{', …' if len(names) > 8 else ''}"
    return [f"{metric} is compared; --metric chooses another: {shown}."] if names else []


def _named(keys: Iterable[Key]) -> str:
    return ", ".join(f"{arm} seed {seed}" for arm, seed in keys)


def _diverged(logged: Logged, metric: str) -> bool:
    """Tell whether a run ended without a number in the metric or in a loss."""
    return any(each and math.isnan(each[-1][1]) for name, each in logged.items() if name == metric or is_loss(name))


def _ends(runs: Mapping[Key, Logged], metric: str, step: str) -> tuple[list[Key], list[str]]:
    """Return the runs that end long before most do and count for nothing, and what is to be said of different ends."""
    alive = {key: logged[metric][-1][0] for key, logged in runs.items() if not _diverged(logged, metric)}
    ends = {key: end for key, end in alive.items() if end}
    usual, runs_of_it = Counter(ends.values()).most_common(1)[0] if ends else (0.0, 0)
    early = [key for key, end in ends.items() if end < EARLY * usual]
    short = {arm for arm, _ in early} - {arm for arm, _ in ends.keys() - early}  # arms of which all runs end early
    if early and not short and 2 * runs_of_it > len(ends):
        steps = ", ".join(f"{ends[key]:,.0f}" for key in early)
        said = f"Ended early and left out: {_named(early)}, at {step} {steps} where most runs end at {usual:,.0f}"
        return early, [f"{said}. {WAY_OUT}"]
    if ends and min(ends.values()) < EARLY * max(ends.values()):
        of_arms = {arm: sorted({end for key, end in ends.items() if key[0] == arm}) for arm, _ in ends}
        steps = "; ".join(f"{arm} at {', '.join(f'{end:,.0f}' for end in of_arm)}" for arm, of_arm in of_arms.items())
        return [], [f"Runs do not end at the same {step}: {steps}. What is compared is the last value of each."]
    return [], []


def _metric(path: Path, runs: Runs, metric: str | None) -> str:
    names = list(dict.fromkeys(name for logged in runs.values() for name in logged))
    if metric is not None:
        if metric not in names:
            raise StructuredInitError(f"'{path}' has no metric '{metric}': {nearest(metric, names)}")
        return metric
    if not names:
        raise StructuredInitError(f"'{path}' has no metric: no column of numbers beside epoch and step")
    likely = [name for name in names if "test" in name.lower()] if len(names) > 1 else names
    if len(likely) != 1:
        shown = ", ".join(f"'{name}'" for name in names[:8]) + (", …" if len(names) > 8 else "")
        raise StructuredInitError(f"'{path}' has several metrics, {shown}: choose one with --metric")
    return likely[0]


def _fractions(name: str, values: Values, runs: Runs) -> Values:
    """Return an accuracy as a fraction, as it is logged here.

    Where its name says percent or any value is above 1, it was in percent. A share that rounding took above 1 is
    none in percent: half precision does so by up to 0.8 %.
    """
    if Metric(name).factor != 100:
        return values
    largest = max((v for each in runs.values() for _, v in each.get(name, []) if math.isfinite(v)), default=0.0)
    percent = largest > ROUNDED_SHARE or Metric(name).in_percent
    return [(step, value / 100) for step, value in values] if percent else values


def _record(path: Path, arm: str, seed: int, logged: Logged) -> Run:
    steps = [step for values in logged.values() for step, _ in values if step is not None]
    result = {
        "metrics": {name: values[-1][1] for name, values in logged.items()},
        **{"epochs": None, "steps": max(steps, default=None), "seconds": None},
    }
    return Run(arm, seed, (), None, path / "runs" / arm / f"seed_{seed}", result=result)


def _curves(runs: Mapping[Key, Logged]) -> pd.DataFrame:
    import pandas as pd

    unknown = {"learning_rate": math.nan, "chosen": True, "epoch": 0}
    rows = [
        {"arm": arm, "seed": seed, **unknown, "step": step, "samples": math.nan, "seconds": math.nan, "metric": name}
        | {"value": value}
        for (arm, seed), logged in runs.items()
        for name, values in logged.items()
        if len(values) > 1  # one value is no curve
        for step, value in values
        if step is not None
    ]
    columns = ["arm", "seed", *unknown, "step", "samples", "seconds", "metric", "value"]
    return pd.DataFrame(rows or None, columns=columns)

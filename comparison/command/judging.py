"""The command ``structured-init judge``: a table goes in, one answer and an exit status come out."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import pandas as pd

from comparison.contrasts.controls import PEER, Controls, parse_controls, roles_of
from comparison.runs.elsewhere import Wanted, read_elsewhere
from comparison.runs.elsewhere.tables import STEPS, column
from comparison.runs.folder import MANIFEST, read_manifest, usual_baseline
from comparison.runs.metric import Metric, mode_of
from comparison.runs.records import load_results
from comparison.verdicts.memory import read_state
from comparison.verdicts.referee import in_percent, judge, only_metric, values_of
from comparison.verdicts.single_look import look_once
from structured_init.util.errors import StructuredInitError, begin_writing


@dataclass(frozen=True)
class Runs:
    """Runs that are judged."""

    table: pd.DataFrame  # a row for each, with its final value
    metric: str
    mode: str | None = None  # the rest where the runs say it
    baseline: str | None = None
    controls: Controls = field(default_factory=dict)


def run_judge(options: argparse.Namespace) -> int:
    """Print what the referee says of runs, remember it beside them, and return the exit status; or refuse them."""
    if options.target is not None or options.unpaired:
        return _look_once(options)
    path = Path(options.results).resolve()  # one memory, whatever name it is asked by
    memory = path.with_name(f"{path.name}.judged.json")
    first = not memory.exists()
    try:
        if path.is_file() and path.stat().st_nlink > 1:
            raise StructuredInitError(f"'{path}' has several names (hard links), each with a memory: leave one")
        runs = _read_runs(path, options)
        begin_writing()
        said = judge(
            runs.table,
            options.baseline or (runs.baseline if first else None),
            metric=runs.metric,
            mode=options.mode or runs.mode,
            controls=parse_controls(options.control) or runs.controls,
            margin=options.margin,
            max_seeds=options.max_seeds,
            proposals=options.proposals,
            state=read_state(memory) if options.dry_run else memory,
        )
    except StructuredInitError as error:
        raise StructuredInitError(f"this cannot be judged: {error}") from None
    print(json.dumps(said.plain()) if options.json else said, flush=True)
    _remark("nothing is remembered (--dry-run)" if options.dry_run else f"what was seen is kept in {memory}")
    return said.status


def _remark(text: str) -> None:
    print(text, file=sys.stderr)


def _look_once(options: argparse.Namespace) -> int:
    """Print what a single test says of runs that are not paired, and return 0 where it keeps any, else 1."""
    for name in ("margin", "max_seeds", "proposals", "control"):
        if getattr(options, name):
            raise StructuredInitError(f"--target and --unpaired ask one test, which takes no {name}")
    path = Path(options.results)
    table = pd.read_csv(path) if path.suffix.lower() == ".csv" and path.is_file() else pd.DataFrame(columns=["seed"])
    has_seeds = options.seed or options.runs or column(table, "seed") or column(table, "name")
    runs = _read_runs(path, options) if has_seeds else _runs_without_seeds(table, options)
    metric = Metric(runs.metric, options.mode or runs.mode or mode_of(runs.metric))
    by_seed = values_of(runs.table, runs.metric)
    factor = 1 if in_percent(by_seed, runs.metric) else metric.factor
    values = {arm: [factor * value for value in of_arm.values()] for arm, of_arm in by_seed.items()}
    beside = options.target
    if beside is None:
        beside = options.baseline or runs.baseline or usual_baseline(values) or next(iter(values))
        for arm in values.keys() - {beside}:
            if by_seed[arm].keys() & by_seed.get(beside, {}).keys():
                raise StructuredInitError(f"'{arm}' and '{beside}' have seeds in common: leave out --unpaired")
    found = look_once(values, beside, metric)
    status = 0 if any(each.is_better for each in found) else 1
    plain = {"answer": "discard" if status else "keep", "status": status, "arms": [asdict(each) for each in found]}
    print(json.dumps(plain) if options.json else "\n".join(each.text for each in found), flush=True)
    _remark("one look, at as many runs as were settled before; nothing is remembered")
    return status


def _read_runs(path: Path, options: argparse.Namespace) -> Runs:
    """Return the runs of a table, of logs or of a comparison; one whose loss is lost has no accuracy that counts."""
    if (path / MANIFEST).is_file():
        runs = _runs_of_comparison(path, options.metric)
    else:
        wanted = Wanted(options.metric, options.mode, options.runs, options.seed, options.arm)
        found = read_elsewhere(path, wanted)
        for remark in found.manifest.remarks:
            _remark(remark)
        runs = Runs(found.results, found.manifest.metric, found.manifest.mode)
    table, metric = runs.table, runs.metric
    if metric in table and "diverged" in table:
        table = table.assign(**{metric: table[metric].mask(table["diverged"].astype(bool))})
    return replace(runs, table=table)


def _runs_of_comparison(folder: Path, metric: str | None) -> Runs:
    manifest = read_manifest(folder)
    if manifest.grid:
        table = f"the rows of one place out of {folder / 'results.csv'}, as a table"
        raise StructuredInitError(f"a comparison with --grid has a question at every place: give {table}")
    results = load_results(folder)
    metric = metric or manifest.metric
    mode = manifest.mode if metric == manifest.metric else None
    controls = {arm: [name for name, role in of.items() if role != PEER] for arm, of in roles_of(manifest).items()}
    return Runs(results[results["chosen"]], metric, mode, manifest.baseline, controls)


def _runs_without_seeds(table: pd.DataFrame, options: argparse.Namespace) -> Runs:
    """Return the runs of a table without seeds, whose rows are runs."""
    for name in STEPS:
        if name in table:
            raise StructuredInitError(f"'{options.results}' has a column '{name}' and no seeds: give a row per run")
    arm = options.arm or column(table, "arm")
    table = table.assign(arm=table[arm] if arm else "runs", seed=range(len(table)))
    return Runs(table, options.metric or only_metric(table))

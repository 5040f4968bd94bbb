"""The command ``structured-init judge``: a table goes in, one answer and an exit status come out."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from comparison.results.controls import PEER, Controls, parse_controls, roles_of, usual_baseline
from comparison.results.elsewhere import read_elsewhere
from comparison.results.elsewhere.tables import STEPS, column
from comparison.results.folder import MANIFEST, read_manifest
from comparison.results.memory import read_state
from comparison.results.metric import Metric, mode_of
from comparison.results.records import load_results
from comparison.results.referee import in_percent, judge, only_metric, values_of
from comparison.results.single_look import beside_baseline, beside_target
from structured_init.util.errors import StructuredInitError, begin_writing, nearest

# A row per run, the metric; direction, baseline and controls where the runs say them.
Final = tuple[pd.DataFrame, str, str | None, str | None, Controls]


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
        table, metric, mode, baseline, controls = _runs(path, options)
        begin_writing()
        said = judge(
            table,
            options.baseline or (baseline if first else None),
            metric=metric,
            mode=options.mode or mode,
            controls=parse_controls(options.control) or controls,
            margin=options.margin,
            precision=options.precision,
            max_seeds=options.max_seeds,
            proposals=options.proposals,
            state=read_state(memory) if options.dry_run else memory,
        )
    except StructuredInitError as error:
        raise StructuredInitError(f"this cannot be judged: {error}") from None
    print(json.dumps(said.plain()) if options.json else said, flush=True)
    if first and options.margin is None and options.precision is None:
        margin = said.state["margin"]
        taken = "it is chosen when the baseline has 5 runs," if margin is None else f"{margin:g} is taken"
        print(f"no --margin: {taken} and holds for these runs from now on", file=sys.stderr)
    if first and not (options.baseline or baseline) and not usual_baseline([said.state["baseline"]]):
        print(f"no --baseline: {said.state['baseline']}, the first, is taken", file=sys.stderr)
    kept = "nothing is remembered (--dry-run)" if options.dry_run else f"what was seen is kept in {memory}"
    print(kept, file=sys.stderr)
    return said.status


def _look_once(options: argparse.Namespace) -> int:
    """Print what a single test says of runs that are not paired, and return 0 where it keeps any, else 1."""
    rule = ("margin", "precision", "max_seeds", "proposals", "control")
    if given := [name for name in rule if getattr(options, name)]:
        raise StructuredInitError(f"--target and --unpaired ask one test, which takes no {', '.join(given)}")
    path = Path(options.results)
    table, metric, mode, baseline, _ = _runs_without_seeds(path, options) or _runs(path, options)
    known = Metric(metric, options.mode or mode or mode_of(metric))
    by_seed = values_of(table, metric)
    factor = 1 if in_percent(by_seed, metric) else known.factor
    values = {arm: [factor * value for value in runs.values()] for arm, runs in by_seed.items()}
    if options.target is not None:
        found = beside_target(values, options.target, known)
    else:
        reference = options.baseline or baseline or usual_baseline(values) or next(iter(values))
        if reference not in values:
            raise StructuredInitError(f"there is no run of the baseline '{reference}': {nearest(reference, values)}")
        if paired := [arm for arm in values if arm != reference and by_seed[arm].keys() & by_seed[reference].keys()]:
            raise StructuredInitError(f"'{paired[0]}' and '{reference}' have seeds in common: leave out --unpaired")
        found = beside_baseline(values, reference, known)
    status = 0 if any(each.is_better for each in found) else 1
    plain = {"answer": "discard" if status else "keep", "status": status, "arms": [asdict(each) for each in found]}
    print(json.dumps(plain) if options.json else "\n".join(each.text for each in found), flush=True)
    print("one look, at as many runs as were settled before; nothing is remembered", file=sys.stderr)
    return status


def _runs_without_seeds(path: Path, options: argparse.Namespace) -> Final | None:
    """Return what :func:`_runs` does of a CSV table without seeds, whose rows are runs; None of anything else."""
    if path.suffix.lower() != ".csv" or not path.is_file() or options.seed or options.runs:
        return None
    table = pd.read_csv(path)
    if column(table, "seed") or column(table, "name"):
        return None
    if steps := [name for name in STEPS if name in table]:
        raise StructuredInitError(f"'{path}' has a column '{steps[0]}' and no seeds: give a row per run")
    arm = options.arm or column(table, "arm")
    table["arm"] = table[arm] if arm else "runs"
    table["seed"] = range(len(table))
    return table, options.metric or only_metric(table), None, None, {}


def _runs(path: Path, options: argparse.Namespace) -> Final:
    """Return the final value of every run, the metric; direction, baseline and controls where the runs say them."""
    if not (path / MANIFEST).is_file():
        found = read_elsewhere(path, options.metric, options.mode, options.runs, options.seed, options.arm)
        for remark in found.manifest["remarks"]:
            print(remark, file=sys.stderr)
        metric = found.manifest["metric"]
        return _without_diverged(found.results, metric), metric, found.manifest["mode"], None, {}
    manifest = read_manifest(path)
    if manifest["grid"]:
        table = f"the rows of one place out of {path / 'results.csv'}, as a table"
        raise StructuredInitError(f"a comparison with --grid has a question at every place: give {table}")
    results = load_results(path)
    mode = manifest["mode"] if options.metric in (None, manifest["metric"]) else None
    controls = {arm: [name for name, role in of.items() if role != PEER] for arm, of in roles_of(manifest).items()}
    metric = options.metric or manifest["metric"]
    return _without_diverged(results[results["chosen"]], metric), metric, mode, manifest["baseline"], controls


def _without_diverged(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return a table in which a run whose loss is lost has no accuracy that counts."""
    if not {metric, "diverged"} <= {*table.columns}:
        return table
    return table.assign(**{metric: table[metric].mask(table["diverged"].astype(bool))})

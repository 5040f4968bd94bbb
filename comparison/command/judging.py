"""The command ``structured-init judge``: a table goes in, one answer and an exit status come out."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from comparison.results.controls import PEER, Controls, parse_controls, roles_of, usual_baseline
from comparison.results.elsewhere import read_elsewhere
from comparison.results.folder import MANIFEST, read_manifest
from comparison.results.memory import read_state
from comparison.results.records import load_results
from comparison.results.referee import judge
from structured_init.util.errors import StructuredInitError, begin_writing

if TYPE_CHECKING:
    import pandas as pd


def run_judge(options: argparse.Namespace) -> int:
    """Print what the referee says of runs, remember it beside them, and return the exit status; or refuse them."""
    path = Path(options.results).resolve()  # one memory, whatever name it is asked by
    memory = path.with_name(f"{path.name}.judged.json")
    first = not memory.exists()
    try:
        if path.is_file() and path.stat().st_nlink > 1:
            raise StructuredInitError(f"'{path}' has several names (hard links), each with a memory: leave one")
        table, metric, mode, baseline, controls = _runs(path, options)
        if {metric, "diverged"} <= {*table.columns}:  # a run whose loss is lost has no accuracy that counts
            table = table.assign(**{metric: table[metric].mask(table["diverged"].astype(bool))})
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


def _runs(path: Path, options: argparse.Namespace) -> tuple[pd.DataFrame, str, str | None, str | None, Controls]:
    """Return the final value of every run, the metric; direction, baseline and controls where the runs say them."""
    if not (path / MANIFEST).is_file():
        found = read_elsewhere(path, options.metric, options.mode, options.runs, options.seed, options.arm)
        for remark in found.manifest["remarks"]:
            print(remark, file=sys.stderr)
        return found.results, found.manifest["metric"], found.manifest["mode"], None, {}
    manifest = read_manifest(path)
    if manifest["grid"]:
        table = f"the rows of one place out of {path / 'results.csv'}, as a table"
        raise StructuredInitError(f"a comparison with --grid has a question at every place: give {table}")
    results = load_results(path)
    mode = manifest["mode"] if options.metric in (None, manifest["metric"]) else None
    controls = {arm: [name for name, role in of.items() if role != PEER] for arm, of in roles_of(manifest).items()}
    return results[results["chosen"]], options.metric or manifest["metric"], mode, manifest["baseline"], controls

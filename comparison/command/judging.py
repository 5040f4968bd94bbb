"""The command ``structured-init judge``: a table goes in, one answer and an exit status come out."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from comparison.contrasts.controls import no_competitors, parse_controls, roles_of
from comparison.runs.elsewhere import Wanted
from comparison.runs.folder import Manifest, read_json
from comparison.runs.metric import Metric
from comparison.runs.reading import read_runs
from comparison.verdicts.referee import judge, values_of
from comparison.verdicts.single_look import look_once
from structured_init.util.errors import StructuredInitError, begin_writing

if TYPE_CHECKING:
    import pandas as pd


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
        table, compared = _read_runs(path, options)
        begin_writing()
        said = judge(
            table,
            options.baseline or (compared.baseline if first else None),
            metric=compared.metric,
            mode=compared.mode,
            controls=no_competitors(roles_of(compared, parse_controls(options.control)), compared.baseline),
            margin=options.margin,
            max_seeds=options.max_seeds,
            proposals=options.proposals,
            state=(None if first else read_json(memory)) if options.dry_run else memory,
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
    table, compared = _read_runs(Path(options.results), options)
    metric = Metric(compared.metric, compared.mode)
    _, by_seed = values_of(table, metric.name)
    values = {arm: [metric.factor * value for value in of_arm.values()] for arm, of_arm in by_seed.items()}
    beside = options.target
    if beside is None:
        beside = options.baseline or compared.baseline
        for arm in values.keys() - {beside}:
            if by_seed[arm].keys() & by_seed.get(beside, {}).keys():
                raise StructuredInitError(f"'{arm}' and '{beside}' have seeds in common: leave out --unpaired")
    found = look_once(values, beside, metric)
    status = 0 if any(each.is_better for each in found) else 1
    plain = {"answer": "discard" if status else "keep", "status": status, "arms": [asdict(each) for each in found]}
    print(json.dumps(plain) if options.json else "\n".join(each.text for each in found), flush=True)
    _remark("one look, at as many runs as were settled before; nothing is remembered")
    return status


def _read_runs(path: Path, options: argparse.Namespace) -> tuple[pd.DataFrame, Manifest]:
    """Return a row per run with its final value, and what the runs say is compared.

    One whose loss is lost has no accuracy that counts.
    """
    asked = {name: getattr(options, name) for name in ("metric", "mode", "seed", "arm")}
    found = read_runs(path, Wanted(**asked, rows=options.target is not None or options.unpaired))
    if found.manifest.grid:
        table = f"the rows of one place out of {path / 'results.csv'}, as a table"
        raise StructuredInitError(f"a comparison with --grid has a question at every place: give {table}")
    for remark in found.manifest.remarks:
        _remark(remark)
    metric, table = found.manifest.metric, found.results[found.results["chosen"]]
    if metric in table and "diverged" in table:
        table = table.assign(**{metric: table[metric].mask(table["diverged"].astype(bool))})
    return table, found.manifest

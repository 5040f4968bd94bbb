"""The one way in for runs that are finished: those of a comparison, and those that were made elsewhere."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from comparison.runs.elsewhere import Compared, Wanted, read_elsewhere
from comparison.runs.folder import MANIFEST, find_runs, read_manifest
from comparison.runs.metric import mode_of
from comparison.runs.records import load_results
from structured_init.util.errors import StructuredInitError, nearest


def read_runs(path: Path, wanted: Wanted) -> Compared:
    """Return what is compared, and its runs: of the folder of a comparison, of a table, or of a folder of logs."""
    if not os.path.lexists(path / MANIFEST):  # a link counts: it is refused
        if os.path.lexists(path / "comparison.json"):
            raise StructuredInitError(
                f"'{path}' was made before plans stood in '{MANIFEST}': rename its comparison.json"
            )
        return read_elsewhere(path, wanted)
    _refuse_links(path)
    manifest, results, metric = read_manifest(path), load_results(path), wanted.metric
    if metric is not None:
        logged = [name for name in results.columns if "/" in name]
        if metric not in logged:
            raise StructuredInitError(f"no complete run of '{path}' has '{metric}': {nearest(metric, logged)}")
        known = metric.partition("/")[2] == manifest.metric.partition("/")[2]  # of another split, perhaps
        manifest = replace(manifest, metric=metric, mode=manifest.mode if known else wanted.mode or mode_of(metric))
    manifest = replace(manifest, mode=wanted.mode or manifest.mode)
    return Compared(manifest, find_runs(path), results)


def _refuse_links(folder: Path) -> None:
    """Refuse a folder in which a link leads out of it: the report would copy what it names."""
    root = os.path.join(os.path.realpath(folder), "")
    for path in folder.rglob("*"):
        if path.is_symlink() and not os.path.realpath(path).startswith(root):
            raise StructuredInitError(f"'{path}' is a link out of the folder: put what it names there")

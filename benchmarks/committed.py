"""Committed runs that decide a claim: a comparison's folder, or the file of an experiment that is none."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comparison.runs.metric import Metric


@dataclass(frozen=True)
class Committed:
    """Runs, and how they are read.

    Attributes:
        rows: one per run that counts: ``arm``, ``seed``, ``seconds``, places of the grid and metrics, as text.
        metric: that decides.
        grid: names of the grid's columns.
        command: that trains them.
        environment: versions and hardware.
        page: where the results stand, beside this file's ``results``.
    """

    rows: list[dict[str, str]]
    metric: Metric
    grid: list[str]
    command: str
    environment: Mapping[str, Any]
    page: str


def committed(claim: Mapping[str, Any], results: Path) -> Committed | None:
    """Return the runs of a claim at its place of the grid; None where they are not committed.

    Args:
        claim: of ``claims.json``. With ``group`` its runs are that group of ``RESULTS.json``, which names the arm
            ``conv``, and it says itself by which ``command``, of which ``metric`` and, where less is better, ``mode``;
            else those of the comparison in the folder ``RESULTS``.
        results: the folder of committed results.
    """
    if "group" in claim:
        return _of_file(claim, results / f"{claim['results']}.json")
    folder = results / claim["results"]
    if not (folder / "results.csv").is_file():
        return None
    manifest = _read(folder / "plan.json")
    with (folder / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("chosen", "True") != "False"]
    place = claim.get("point", {})
    rows = [row for row in rows if all(_same(row[key], value) for key, value in place.items())]
    first, *_ = _read(folder / "results.json")["runs"]
    known = first.get("environment") or first.get("surroundings") or {}
    metric = Metric(claim.get("metric", manifest["metric"]), manifest["mode"])
    grid = list(manifest.get("grid") or ())
    return Committed(rows, metric, grid, manifest["command"], known, f"{claim['results']}/report.md")


def _of_file(claim: Mapping[str, Any], file: Path) -> Committed | None:
    if not file.is_file():
        return None
    known = _read(file)
    rows = [
        {"arm": run["conv"], **{key: str(run[key]) for key in ("seed", "seconds")}}
        | {key: str(value) for key, value in run["metrics"].items()}
        for run in known["runs"][claim["group"]]
    ]
    page = f"{claim['results']}.md"
    metric = Metric(claim["metric"], claim.get("mode", "max"))
    return Committed(rows, metric, [], claim["command"], known["surroundings"], page)


def _read(file: Path) -> dict[str, Any]:
    known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return known


def _same(text: str, value: str) -> bool:
    return text == value or (text.replace(".", "").isdigit() and float(text) == float(value))

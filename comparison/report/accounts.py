"""What ran and what it started from: tables and lines that the page and the Markdown share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from markupsafe import Markup, escape
from torch import Size

from comparison.report.material import Material
from comparison.results.records import chosen_learning_rates, point_label
from comparison.results.tables import Cell, Table, decimals, learning_rate_table, target_text
from comparison.results.targets import Reach

MOST_ROWS = 80


def state(material: Material) -> str:
    """Return one sentence on what is missing; empty when all is there."""
    asked = len(material.manifest["arms"]) * len(material.manifest["seeds"]) * len(material.points)
    asked *= len(material.manifest["learning_rates"]) or 1
    complete = sum(run.result is not None for run in material.runs)
    failed = sum(run.failure is not None for run in material.runs)
    running = sum(run.result is None and run.failure is None for run in material.runs)
    parts = [
        f"{complete} of {asked} runs are complete",
        f"{failed} failed" if failed else "",
        f"{running} started and not complete" if running else "",
        f"{len(material.missing)} not started" if material.missing else "",
    ]
    unfinished = failed or running or material.missing
    return ", ".join(part for part in parts if part) + "." if unfinished else ""


def unfinished_table(material: Material) -> Table | None:
    """Return the runs without a result and what is known of them."""
    rows = [
        [run.arm, point_label(run.point), _rate(run.learning_rate), run.seed, run.failure or "started, not complete"]
        for run in material.runs
        if run.result is None
    ]
    rows += [[arm, point_label(p), _rate(rate), seed, "not started"] for arm, seed, p, rate in material.missing]
    return _plain(["arm", "at", "learning rate", "seed", "what is known"], rows) if rows else None


def started(material: Material) -> list[dict[str, Any]]:
    """Return what each start changed, from the init reports."""
    return [_started(arm, report, material) for arm, report in material.reports().items()]


def rate_tables(material: Material) -> list[tuple[str, Table]]:
    """Return the tables of learning rates, one per place of the grid."""
    chosen = chosen_learning_rates(material.folder)
    several = len(chosen) > 1
    return [(name if several else "", learning_rate_table(arms, material.metric)) for name, arms in chosen.items()]


def step_tables(material: Material) -> list[tuple[str, Table, str]]:
    """Return the steps to the target of every seed, one table per place of the grid, and how they are made."""
    found = []
    for each in material.effects:
        if each.target is None:
            continue
        seeds = sorted({seed for arm in each.arms if arm.reach for seed in arm.reach.steps})
        rows = [
            [Cell(arm.name, arm=arm.name), *(Cell(_steps_of(arm.reach, seed)) for seed in seeds)]
            for arm in each.arms
            if arm.reach
        ]
        note = (
            f"The target, {target_text(each, decimals(each))}, is the mean of {each.baseline}’s final "
            f"{each.metric.on_validation.replace('/', ' ')}: "
            "it is taken on the validation split, never on test. Curves are linear between evaluations. The speed-up "
            "above is the baseline’s steps divided by the arm’s, paired within a seed, as geometric mean with a t "
            "interval of the logarithms; where the baseline’s own run does not reach the target, its whole length "
            "counts and the speed-up is a lower bound."
        )
        name = point_label(each.point) if len(material.points) > 1 else ""
        found.append((name, Table(["arm", *(f"seed {seed}" for seed in seeds)], rows), note))
    return found


def surroundings_table(material: Material) -> Table | None:
    """Return hardware, threads and versions of the complete runs."""
    values: dict[str, list[str]] = {}
    for run in material.runs:
        for name, value in ((run.result or {}).get("surroundings") or {}).items():
            known = values.setdefault(name, [])
            known.extend([str(value)] if str(value) not in known else [])
    rows = [
        [name, "; ".join(found) + (" (differs between runs)" if len(found) > 1 else "")]
        for name, found in values.items()
    ]
    return _plain(["surroundings", ""], rows) if rows else None


def command(text: str) -> Markup:
    """Return a command that breaks after commas and before options, never within an option's name."""
    whole = re.sub(r"--[\w.+-]+", lambda name: f"<span>{name[0]}</span>", str(escape(text)))
    return Markup(whole.replace(",", ",<wbr>"))


def provenance(material: Material) -> str:
    """Return seeds, arguments, time and version, in a line."""
    seconds = [run.result["seconds"] for run in material.runs if run.result and run.result.get("seconds")]
    arguments = " ".join(map(str, material.manifest["arguments"]))
    parts = [
        f"Seeds {', '.join(map(str, material.manifest['seeds']))}.",
        f"Further arguments of every run: {arguments}." if arguments else "",
        f"A complete run took {min(seconds):,.0f} to {max(seconds):,.0f} seconds." if seconds else "",
        "Tables are in results.csv, curves.csv and results.json, figures for a paper in the folder figures.",
        f"Written by structured-init {version('structured-init')}.",
    ]
    return " ".join(part for part in parts if part)


def _started(arm: str, report: Mapping[str, Any], material: Material) -> dict[str, Any]:
    entries = report["entries"]
    changed = [entry for entry in entries if entry["set_by"]]
    counts = [sum(Size(entry["shape"]).numel() for entry in each) for each in (changed, entries)]
    frozen = sum(not entry["trainable"] for entry in entries)
    rows = [
        ["=".join(e["names"]), "×".join(map(str, e["shape"])), "; ".join(e["set_by"]),
         f"{e['before']['std']:.3g} → {e['after']['std']:.3g}".replace("-", "−")]
        for e in changed[:MOST_ROWS]
    ]  # fmt: skip
    more = f", the first {MOST_ROWS}" if len(changed) > MOST_ROWS else ""
    notes = [
        *(f"Warning: {warning}" for warning in report["warnings"]),
        *(f"Note on {name}: {what}" for name, what in report["notes"].items()),
        *(f"Skipped {name}: {why}" for name, why in report["skipped"].items()),
    ]
    return {
        "name": arm,
        "color": material.looks[arm].variable,
        "control": material.controls.get(arm),
        "initializer": report["initializer"],
        "summary": f"Set {len(changed)} of {len(entries)} tensors ({counts[0]:,} of {counts[1]:,} numbers)"
        + (f", {frozen} frozen." if frozen else ".")
        + _trained(report),
        "notes": notes[:MOST_ROWS],
        "details": f"What it wrote{more}",
        "table": _plain(["tensor", "shape", "set by", "standard deviation"], rows).html() if rows else "",
    }


def _trained(report: Mapping[str, Any]) -> str:
    """Return how much of the network is trained, where the start freezes some of it; older reports do not say."""
    trained, total = report.get("trainable_parameters", 0), report.get("total_parameters", 0)
    return f" {trained:,} of {total:,} parameters are trained." if trained < total else ""


def _steps_of(found: Reach, seed: int) -> str:
    if seed not in found.steps:
        return ""
    steps = found.steps[seed]
    return "not reached" if steps is None else f"{steps:,.0f}"


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:g}"


def _plain(columns: list[str], rows: list[list[Any]]) -> Table:
    """Return a table of plain texts, without the columns that are empty in every row."""
    kept = [place for place in range(len(columns)) if any(row[place] != "" for row in rows)]
    return Table([columns[i] for i in kept], [[Cell(str(row[i])) for i in kept] for row in rows])

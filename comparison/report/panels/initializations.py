"""What each initialization changed, from the init reports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from comparison.report.data import ReportData
from comparison.report.registry import Html, register_panel
from comparison.report.rendering import render
from comparison.results.tables import Cell, Table

MOST_ROWS = 80


@register_panel("What each initialization changed", label="Initializations")
def initializations(data: ReportData) -> Html | None:
    """Return a card per initialization; None where no run has a report."""
    changed = [_changed(arm, report, data) for arm, report in data.reports().items()]
    if not changed:
        return None
    return Html(render("initializations.html.j2", initializations=changed), "\n".join(map(_line, changed)))


def _changed(arm: str, report: Mapping[str, Any], data: ReportData) -> dict[str, Any]:
    entries = report["entries"]
    changed = [entry for entry in entries if entry["set_by"]]
    counts = [sum(math.prod(entry["shape"]) for entry in each) for each in (changed, entries)]
    frozen = sum(not entry["trainable"] for entry in entries)
    rows = [
        ["=".join(e["names"]), "×".join(map(str, e["shape"])), "; ".join(e["set_by"]),
         f"{e['before']['std']:.3g} → {e['after']['std']:.3g}".replace("-", "−")]
        for e in changed[:MOST_ROWS]
    ]  # fmt: skip
    table = Table(["tensor", "shape", "set by", "standard deviation"], [[Cell(text) for text in row] for row in rows])
    more = f", the first {MOST_ROWS}" if len(changed) > MOST_ROWS else ""
    notes = [
        *(f"Warning: {warning}" for warning in report["warnings"]),
        *(f"Note on {name}: {what}" for name, what in report["notes"].items()),
        *(f"Skipped {name}: {why}" for name, why in report["skipped"].items()),
    ]
    return {
        "name": arm,
        "color": data.colors[arm],
        "control": data.controls.get(arm),
        "initializer": report["initializer"],
        "summary": f"Set {len(changed)} of {len(entries)} tensors ({counts[0]:,} of {counts[1]:,} numbers)"
        + (f", {frozen} frozen." if frozen else ".")
        + _trained(report),
        "notes": notes[:MOST_ROWS],
        "details": f"What it wrote{more}",
        "table": table.html() if rows else "",
    }


def _trained(report: Mapping[str, Any]) -> str:
    """Return how much of the network is trained, where some of it is frozen; older reports do not say."""
    trained, total = report.get("trainable_parameters", 0), report.get("total_parameters", 0)
    return f" {trained:,} of {total:,} parameters are trained." if trained < total else ""


def _line(each: Mapping[str, Any]) -> str:
    control = f" Its same-positions control is {each['control']}." if each["control"] else ""
    return " ".join([f"- **{each['name']}**: `{each['initializer']}`. {each['summary']}{control}", *each["notes"]])

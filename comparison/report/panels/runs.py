"""What each initialization changed, which runs are missing, how to repeat them, and on what they ran."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup, escape

from comparison.report.data import RATES, ReportData
from comparison.report.registry import Html, Piece, heading, note, register_panel, render, table
from comparison.results.folder import Point, asked_seeds, point_label
from comparison.results.tables import Cell, Table, plain
from structured_init.util.files import made_by

MOST_ROWS = 80
KEY = ("arm", "at", "learning rate", "seed")


@register_panel("What each initialization changed", label="Initializations")
def initializations(data: ReportData) -> Html | None:
    """Return a card per initialization, and per network where it does other things there; None without a report."""
    cards: dict[str, dict[str, list[tuple[Point, dict[str, Any]]]]] = {}
    for (arm, point), report in data.reports().items():
        told = {re.sub(r"[\d.,e+-]+", "#", what) for what in (*report["notes"].values(), *report["warnings"])}
        by = {each for entry in report["entries"] for each in entry["set_by"]}
        done = repr([sorted(each) for each in (by, report["skipped"], told)])
        cards.setdefault(arm, {}).setdefault(done, []).append((point, _changed(arm, report, data)))
    if not cards:
        return None
    changed = []
    for arm, of_arm in cards.items():
        for places in of_arm.values():
            (first, card), *_ = places
            name = f"{arm} at {'; '.join(point_label(point) for point, _ in places)}" if len(of_arm) > 1 else arm
            alike = len({other["summary"] for _, other in places}) == 1
            summary = card["summary"] if alike else f"At {point_label(first)}: {card['summary']}"
            changed.append({**card, "name": name, "summary": summary})
    lines = []
    for each in changed:
        control = f" Its controls: {each['controls']}." if each["controls"] else ""
        said = f"- **{plain(each['name'])}**: `{each['initializer']}`. {plain(each['summary'] + control)}"
        lines.append(" ".join([said, *map(plain, each["notes"])]))
    return Html(render("initializations.html.j2", initializations=changed), "\n".join(lines))


def _changed(arm: str, report: Mapping[str, Any], data: ReportData) -> dict[str, Any]:
    entries = report["entries"]
    changed = [entry for entry in entries if entry["set_by"]]
    counts = [sum(math.prod(entry["shape"]) for entry in each) for each in (changed, entries)]
    frozen = sum(entry["trainable"] is False for entry in entries)
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
    trained, total = report.get("trainable_parameters", 0), report.get("total_parameters", 0)
    return {
        "name": arm,
        "color": data.colors[arm],
        "controls": ", ".join(f"{name} ({role})" for name, role in data.controls.get(arm, {}).items()),
        "initializer": report["initializer"],
        "summary": f"Set {len(changed)} of {len(entries)} tensors ({counts[0]:,} of {counts[1]:,} numbers)"
        + (f", {frozen} frozen." if frozen else ".")
        + (f" {trained:,} of {total:,} parameters are trained." if trained < total else ""),
        "notes": [f"{each.rstrip('.')}." for each in notes[:MOST_ROWS]],  # sentences, one after the other in Markdown
        "details": f"What it wrote{more}",
        "table": table.html() if rows else "",
    }


@register_panel("Runs and how to repeat them", label="Runs")
def runs(data: ReportData) -> list[Piece]:
    """Return the runs without a result, what others could not show, the command, hardware and versions."""
    values: dict[str, dict[str, None]] = {}
    for run in data.runs:
        for name, value in run.environment.items():
            values.setdefault(name, {})[str(value)] = None
    differs = lambda found: " (differs between runs)" if len(found) > 1 else ""  # noqa: E731
    rows = [[name, "; ".join(found) + differs(found)] for name, found in values.items()]
    shown: list[Piece] = []
    for title, found in (("Without a result", _unfinished(data)), ("Not captured", _not_captured(data))):
        shown += [*heading(title), table(data, found)] if found else []
    shown += heading("Command") if shown else []
    text = data.manifest.get("command", "")
    whole = re.sub(r"--[\w.+-]+", lambda name: f"<span>{name[0]}</span>", str(escape(text))).replace(",", ",<wbr>")
    markup = f'<div class="command"><pre><code>{whole}</code></pre><button type="button" data-copy>Copy</button></div>'
    shown.append(Html(Markup(markup), f"```\n{text}\n```"))
    shown += [table(data, _text_table(["environment", ""], rows), "tight")] if rows else []
    off = lambda value: value is False or value in (None, "", -1, [], {})  # noqa: E731
    settings = [[name, value] for name, value in data.settings.items() if not off(value)]
    shown += [table(data, _text_table(["setting of all runs", ""], settings), "tight")] if settings else []
    shown += [table(data, between, "tight")] if (between := _between_places(data)) else []
    return [*shown, note(_provenance(data))]


def _between_places(data: ReportData) -> Table | None:
    """Return what tells whole configurations of a grid apart, a column for each place."""
    places = data.at_places if data.by_configurations else {}
    names = sorted({name for known in places.values() for name in known if data.told(name)})
    rows = [[name, *(known.get(name, "") for known in places.values())] for name in names]
    rows = [row for row in rows if any(str(value) != str(row[1]) for value in row[1:])]
    return _text_table(["setting of a place", *places], rows) if rows else None


def _unfinished(data: ReportData) -> Table | None:
    """Return the runs without a result and what is known of them."""
    rows = [[*_key(*run.key), run.failure or "started, not complete"] for run in data.runs if run.result is None]
    rows += [[*_key(*key), "not started"] for key in data.missing]
    return _text_table([*KEY, "what is known"], rows) if rows else None


def _not_captured(data: ReportData) -> Table | None:
    """Return what the runs could not look at, and why: it is absent from the sections above."""
    rows = [
        [*_key(*run.key), what.replace("_", " "), moment, why]
        for run in data.runs
        for what, moments in run.missing.items()
        for moment, why in moments.items()
    ]
    return _text_table([*KEY, "what", "moment", "why not"], rows) if rows else None


def _provenance(data: ReportData) -> str:
    """Return seeds, arguments, time and version, in a line."""
    rates = (each for name, each in data.settings.items() if name in RATES and isinstance(each, int | float))
    rate = next(rates, None)
    seconds = sorted(run.result["seconds"] for run in data.runs if run.result and run.result.get("seconds"))
    took = list(dict.fromkeys(f"{each:,.0f}" for each in (*seconds[:1], *seconds[-1:])))
    arguments = " ".join(map(str, data.manifest["arguments"]))
    # A table of final values has no curve, and successes without one have no picture.
    drawn = len(data.curves) or (not data.successes and any(each.competing for each in data.places))
    figures = ", figures for a paper in the folder figures" if drawn else ""
    parts = [
        f"Seeds {', '.join(map(str, asked_seeds(data.manifest)))}.",
        f"Further arguments of every run: {arguments}." if arguments else "",
        f"No learning rate was searched: all arms have {rate:g}." if rate else "",
        f"A complete run took {'about ' * (len(took) < 2)}{' to '.join(took)} second{'s' * (took != ['1'])}."
        if took
        else "",
        f"Tables are in results.csv, curves.csv and results.json, that of the result also in results.tex{figures}.",
        f"Written by structured-init {made_by()}.",
    ]
    return " ".join(part for part in parts if part)


def _key(arm: str, seed: int, point: Point, rate: float | None) -> list[Any]:
    """Return the cells that tell a run from every other."""
    return [arm, point_label(point), "" if rate is None else f"{rate:g}", seed]


def _text_table(columns: list[str], rows: list[list[Any]]) -> Table:
    """Return a table of plain texts, without the columns that are empty in every row."""
    kept = [place for place in range(len(columns)) if any(row[place] != "" for row in rows)]
    return Table([columns[i] for i in kept], [[Cell(str(row[i])) for i in kept] for row in rows])

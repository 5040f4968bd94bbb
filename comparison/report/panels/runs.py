"""What each initialization changed, which runs are missing, how to repeat them, and on what they ran."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from comparison.report.data import ReportData
from comparison.report.registry import Html, Piece, folded, heading, register_panel
from comparison.results.folder import Run, asked_seeds, point_label, read_json
from comparison.results.tables import Cell, Table
from structured_init.util.files import made_by

KEY = ("arm", "at", "learning rate", "seed")
SETTINGS = ("model.", "data.", "trainer.max_", "trainer.limit_", "trainer.gradient_clip", "trainer.precision")


@register_panel("What each initialization changed")
def initializations(data: ReportData) -> Table | None:
    """Return a row per arm, and per place of the grid where it does other things there; None without a report."""
    reports = {}
    for run in sorted(data.runs, key=lambda run: run.seed):
        path = run.folder / "init_report.json"
        if (run.arm, run.point) not in reports and path.is_file():
            reports[run.arm, run.point] = read_json(path)
    places: dict[tuple[str, ...], list[str]] = {}
    for arm in data.styles:
        for point in data.points:
            if (arm, point) in reports:
                row = (arm, *_changed(reports[arm, point]), ", ".join(data.controls.get(arm, ())))
                places.setdefault(row, []).append(data.place_text(point))
    several = {arm for arm, *_ in places if sum(other == arm for other, *_ in places) > 1}
    rows = [[row[0], "; ".join(at) if row[0] in several else "", *row[1:]] for row, at in places.items()]
    return _text_table(["arm", "at", "initializer", "set", "notes", "controls"], rows) if rows else None


def _changed(report: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the initializer, how much it set, and what it noted."""
    sizes = [math.prod(entry["shape"]) for entry in report["entries"]]
    kept = [size for size, entry in zip(sizes, report["entries"], strict=True) if entry["set_by"]]
    counts = f"{len(kept)} of {len(sizes)} tensors, {sum(kept):,} of {sum(sizes):,} numbers"
    trained, total = report.get("trainable_parameters", 0), report.get("total_parameters", 0)
    if trained < total:
        counts += f"; {trained:,} of {total:,} parameters are trained"
    notes = [*report["warnings"]]
    for name, what in {**report["notes"], **report["skipped"]}.items():
        notes.append(f"{name}: {what}")
    return report["initializer"], counts, "; ".join(notes)


@register_panel("Runs and how to repeat them")
def runs(data: ReportData) -> list[Piece]:
    """Return the runs without a result, what others could not show, the command, hardware and versions."""
    unfinished = [[*_key(run), run.failure or "started, not complete"] for run in data.runs if run.result is None]
    for arm, seed, point, rate in data.missing:
        unfinished.append([*_key(Run(arm, seed, point, rate, data.folder)), "not started"])
    not_captured = []
    for run in data.runs:
        for what, moments in run.missing.items():
            for moment, why in moments.items():
                not_captured.append([*_key(run), what.replace("_", " "), moment, why])
    shown: list[Piece] = []
    if unfinished:
        shown += [*heading("Without a result"), _text_table([*KEY, "what is known"], unfinished)]
    if not_captured:
        shown += [*heading("Not captured"), _text_table([*KEY, "what", "moment", "why not"], not_captured)]
    command = data.manifest.get("command", "")
    shown.append(Html(Markup("<pre><code>{}</code></pre>").format(command), f"```\n{command}\n```"))
    shown.append(_text_table(["environment", ""], _environment(data)))
    settings = []
    for name, value in data.manifest.get("configuration", {}).items():
        if name.startswith(SETTINGS) and value is not False and value not in (None, "", -1, [], {}):
            settings.append([name, value])
    if settings:
        table = _text_table(["setting of the experiment, before arms and grid change it", ""], settings)
        shown.append(folded("Settings of the experiment", Html(table.html(), table.markdown())))
    return shown


def _environment(data: ReportData) -> list[list[str]]:
    """Return on what the runs ran, and how they are repeated."""
    values: dict[str, dict[str, None]] = {}
    for run in data.runs:
        for name, value in run.environment.items():
            values.setdefault(name, {})[str(value)] = None
    rows = [[name, "; ".join(found)] for name, found in values.items()]
    rows.append(["seeds", ", ".join(map(str, asked_seeds(data.manifest)))])
    rows.append(["arguments of every run", " ".join(map(str, data.manifest["arguments"]))])
    seconds = [run.result["seconds"] for run in data.runs if run.result and run.result.get("seconds")]
    if seconds:
        rows.append(["seconds of a run", f"{min(seconds):,.0f} to {max(seconds):,.0f}"])
    rows.append(["report written by", f"structured-init {made_by()}"])
    return [row for row in rows if row[1]]


def _key(run: Run) -> list[Any]:
    """Return the cells that tell a run from every other."""
    return [run.arm, point_label(run.point), "" if run.learning_rate is None else f"{run.learning_rate:g}", run.seed]


def _text_table(columns: list[str], rows: list[list[Any]]) -> Table:
    """Return a table of plain texts, without the columns that are empty in every row."""
    kept = [place for place in range(len(columns)) if any(row[place] != "" for row in rows)]
    cells = [
        [Cell(str(row[place]), arm=row[place] if columns[place] == "arm" else "") for place in kept] for row in rows
    ]
    return Table([columns[place] for place in kept], cells)

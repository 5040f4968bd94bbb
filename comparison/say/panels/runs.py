"""What each initialization changed, which runs are missing, how to repeat them, and on what they ran."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
from markupsafe import Markup

from comparison.runs.folder import Key, point_label, read_json
from comparison.say.data import ReportData
from comparison.say.registry import Html, Piece, heading, register_panel
from structured_init.util.files import made_by

SETTINGS = ("model.", "data.", "trainer.max_", "trainer.limit_", "trainer.gradient_clip", "trainer.precision")
SAYS_NOTHING = ("None", "False", "-1", "", "[]", "{}")


@register_panel("What each initialization changed")
def initializations(data: ReportData) -> pd.DataFrame | None:
    """Return a row per arm, and per places of the grid where it does other things there; None without a report."""
    rows = {}
    for run in sorted(data.runs, key=lambda run: run.seed):
        path = run.folder / "init_report.json"
        if (run.arm, run.point) not in rows and path.is_file():
            controls = ", ".join(data.manifest.controls.get(run.arm, ()))
            known = {"arm": run.arm, **_changed(read_json(path)), "controls": controls}
            rows[run.arm, run.point] = {**known, "at": data.place_text(run.point)}
    ordered = [rows[arm, point] for arm in data.styles for point in data.points if (arm, point) in rows]
    if not ordered:
        return None
    frame = pd.DataFrame(ordered)
    same = frame.groupby([*frame.columns.drop("at")], sort=False)["at"].agg("; ".join)
    return _filled(same.reset_index())


def _changed(report: Mapping[str, Any]) -> dict[str, str]:
    """Return the initializer, how much it set, and what it noted."""
    sizes = [math.prod(entry["shape"]) for entry in report["entries"]]
    kept = [math.prod(entry["shape"]) for entry in report["entries"] if entry["set_by"]]
    counts = f"{len(kept)} of {len(sizes)} tensors, {sum(kept):,} of {sum(sizes):,} numbers"
    trained, total = report.get("trainable_parameters", 0), report.get("total_parameters", 0)
    if trained < total:
        counts += f"; {trained:,} of {total:,} parameters are trained"
    notes = [f"{name}: {what}" for name, what in {**report["notes"], **report["skipped"]}.items()]
    return {"initializer": report["initializer"], "set": counts, "notes": "; ".join([*report["warnings"], *notes])}


@register_panel("Runs and how to repeat them")
def runs(data: ReportData) -> list[Piece]:
    """Return the runs without a result, what others could not show, the command, hardware and versions."""
    unfinished = [{**_named(key), "what is known": "not started"} for key in data.missing]
    not_captured = []
    for run in data.runs:
        if run.result is None:
            unfinished.append({**_named(run.key), "what is known": run.failure or "started, not complete"})
        for what, moments in run.missing.items():
            for moment, why in moments.items():
                not_captured.append({**_named(run.key), "what": what, "moment": moment, "why not": why})
    shown: list[Piece] = []
    for title, rows in (("Without a result", unfinished), ("Not captured", not_captured)):
        if rows:
            shown += [*heading(title), _filled(pd.DataFrame(rows))]
    command = data.manifest.command
    shown.append(Html(Markup("<pre><code>{}</code></pre>").format(command), f"```\n{command}\n```"))
    shown.append(_pairs("environment", _environment(data)))
    settings = {}
    for name, value in data.manifest.configuration.items():
        if name.startswith(SETTINGS) and str(value) not in SAYS_NOTHING:
            settings[name] = value
    if settings:
        shown.append(_pairs("setting of the experiment, before arms and grid change it", settings))
    return shown


def _environment(data: ReportData) -> dict[str, Any]:
    """Return on what the runs ran, and how they are repeated."""
    known = pd.DataFrame([run.environment for run in data.runs])
    values = {name: "; ".join(known[name].dropna().astype(str).unique()) for name in known.columns}
    values["seeds"] = ", ".join(map(str, data.manifest.asked_seeds()))
    values["arguments of every run"] = " ".join(map(str, data.manifest.arguments))
    seconds = data.results["seconds"].dropna()
    values["seconds of a run"] = f"{seconds.min():,.0f} to {seconds.max():,.0f}" if len(seconds) else ""
    values = {name: value for name, value in values.items() if value}  # runs made elsewhere have neither
    return values | {"report written by": f"structured-init {made_by()}"}


def _named(key: Key) -> dict[str, Any]:
    """Return what tells a run from every other."""
    arm, seed, point, rate = key
    return {"arm": arm, "at": point_label(point), "learning rate": f"{rate:g}" if rate else "", "seed": seed}


def _pairs(title: str, values: Mapping[str, Any]) -> pd.DataFrame:
    return pd.DataFrame({title: [*values], "": list(map(str, values.values()))})


def _filled(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table without the columns that are empty in every row."""
    return frame.loc[:, (frame != "").any()]

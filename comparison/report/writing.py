"""The files of a report, each under its final name only when it is whole."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comparison.report import sentences
from comparison.report.answers import answers
from comparison.report.data import ReportData, read_report_data
from comparison.report.drawing import Drawing
from comparison.report.page import Sections, drawings, page, read_panels
from comparison.report.registry import Html
from comparison.results.decisions import Decision
from comparison.results.effects import ArmResult, Effect, Effects
from comparison.results.paired import Interval
from comparison.results.records import MANIFEST, to_csv
from comparison.results.success import Successes
from comparison.results.tables import Table
from structured_init.errors import StructuredInitError
from structured_init.files import write_text

PAGE = "report.html"


def write_report(
    folder: str | os.PathLike[str],
    baseline: str | None = None,
    controls: Mapping[str, str] | str | None = None,
    output: str | os.PathLike[str] | None = None,
    success: float | None = None,
    metric: str | None = None,
    mode: str | None = None,
    names: str | None = None,
    seed: str | None = None,
) -> list[Path]:
    """Write what a comparison found, finished or not: a page, Markdown, tables and figures for a paper.

    Args:
        folder: of the comparison; or a table, or a folder of runs, made elsewhere.
        baseline: the arm that differences refer to; the comparison's own when None.
        controls: arm → its same-positions control, or one for all arms; the comparison's own, else those found in the
            init reports, when None.
        output: the page's file; ``report.html`` in the folder when None, in ``table_report`` beside ``table.csv``.
            Everything else goes beside it.
        success: what a run has to reach of the metric to be counted, as it is logged; the comparison's own when None.
        metric: what is compared, where runs made elsewhere have several.
        mode: ``"max"`` or ``"min"``, whether more or less of it is better; the comparison's own when None.
        names: how runs made elsewhere are named, with ``{arm}`` and ``{seed}``.
        seed: the setting that is the seed of runs made with Lightning's ``CSVLogger``, where it is not called so.

    Returns:
        The files written, the page first.

    Raises:
        StructuredInitError: there is no comparison, an arm is unknown, or a file cannot be written.
    """
    path = Path(output) if output is not None else default_page(Path(folder))
    figures_folder = path.parent / "figures"
    for place in (figures_folder, *([path.parent] if output is None and path.parent != Path(folder) else [])):
        if place.is_symlink():
            raise StructuredInitError(f"'{place}' is a link: a report is written into folders of its own, remove it")
    if path.is_dir():
        raise StructuredInitError(f"cannot write the page to '{path}', a folder: name a file, such as '{path / PAGE}'")
    data = read_report_data(folder, baseline, controls, success, metric, mode, names, seed)
    sections = read_panels(data)
    texts = {
        path: page(data, sections),
        path.with_suffix(".md"): markdown(data, sections),
        path.with_name("results.csv"): to_csv(data.results),
        path.with_name("results.json"): json.dumps(_plain(record(data)), indent=1, allow_nan=False) + "\n",
        path.with_name("curves.csv"): to_csv(data.curves),
    }
    figures = [file for each in drawings(sections) if each.save for file in each.write(figures_folder)]
    for file, text in texts.items():
        write_text(file, text.encode(errors="backslashreplace").decode())  # a half of a character has no bytes
    return [*texts, *figures]


def default_page(source: Path) -> Path:
    """Return where the page of a comparison goes; of runs made elsewhere into a folder beside them.

    Raises:
        StructuredInitError: a folder that is the root of all has nothing beside it.
    """
    if (source / MANIFEST).is_file():
        return source / PAGE
    named = source if source.name.strip(".") else source.resolve()  # "." and ".." have no name
    if not named.name:
        raise StructuredInitError(f"'{source}' is no folder of runs: name the page with --output if it is")
    return named.with_name(f"{named.stem}_report") / PAGE


def markdown(data: ReportData, sections: Sections) -> str:
    """Return every panel in Markdown: what it says, its tables, and links to its figures."""
    parts = [f"# {sentences.title(data)}", sentences.lead(data)]
    parts += answers(data)
    if sentences.state(data):
        parts.append(f"**Not finished.** {sentences.state(data)}")
    for panel, shown in sections:
        parts += [f"## {panel.title}", *(text for piece in shown for text in _markdown(piece))]
    return "\n\n".join(parts) + "\n"


def _markdown(piece: str | Table | Drawing | Html) -> list[str]:
    """Return the paragraphs of a piece."""
    if isinstance(piece, Table):
        return [piece.markdown()]
    if isinstance(piece, str):
        return [piece]
    figures = [piece] if isinstance(piece, Drawing) else piece.drawings
    links = [f"![{drawing.text}](figures/{drawing.name}.png)" for drawing in figures if drawing.save]
    return [*filter(None, [getattr(piece, "markdown", "")]), *links]


def record(data: ReportData) -> dict[str, Any]:
    """Return everything that is in the tables, as plain lists, dicts, strings and numbers."""
    return {
        "comparison": data.manifest,
        "controls": data.controls,
        "scrambled": data.scrambled,
        "effects": [_effects(found) for found in data.effects],
        **({"successes": [_successes(found) for found in data.successes]} if data.successes else {}),
        "runs": [
            {
                **{"arm": run.arm, "seed": run.seed, "point": dict(run.point), "learning_rate": run.learning_rate},
                **({"failure": run.failure} if run.failure else {}),
                **({"not_captured": run.missing} if run.missing else {}),
                **(run.result or {"complete": False}),
            }
            for run in data.runs
        ],
        "missing": [
            {"arm": arm, "seed": seed, "point": dict(place), "learning_rate": rate}
            for arm, seed, place, rate in data.missing
        ],
    }


def _effects(found: Effects) -> dict[str, Any]:
    return {
        "point": dict(found.point),
        "metric": found.metric.name,
        "factor": found.metric.factor,
        "baseline": found.baseline,
        "target": found.target,
        "arms": [_arm(arm) for arm in found.arms],
    }


def _successes(found: Successes) -> dict[str, Any]:
    """Return the counts at one place of the grid; the metric and the baseline stand in its effects."""
    return {
        "point": dict(found.point),
        "threshold": found.threshold,
        "arms": [dataclasses.asdict(arm) for arm in found.arms],
    }


def _arm(arm: ArmResult) -> dict[str, Any]:
    reach = None
    if arm.reach is not None:
        speed_up = _interval(arm.reach.speed_up) if arm.reach.speed_up else None
        reach = {"steps": arm.reach.steps, "speed_up": speed_up, "lower_bounds": arm.reach.bounds}
    return {
        "arm": arm.name,
        "learning_rate": arm.learning_rate,
        "by_seed": arm.by_seed,
        "diverged": list(arm.diverged),
        **({"no_learning_rate": dataclasses.asdict(arm.no_rate)} if arm.no_rate else {}),
        "value": arm.value and _interval(arm.value),
        "to_baseline": _effect(arm.baseline),
        "to_control": _effect(arm.control),
        "to_scrambled": _effect(arm.scrambled),
        "reach": reach,
    }


def _effect(effect: Effect | None) -> dict[str, Any] | None:
    if effect is None:
        return None
    return {
        "reference": effect.reference,
        "by_seed": effect.by_seed,
        "is_gain": effect.is_gain,
        "p_value": effect.p_value,
        "adjusted_p_value": effect.adjusted,
        **_interval(effect.interval),
        **({"decision": _decision(effect.decision)} if effect.decision else {}),
    }


def _decision(decision: Decision) -> dict[str, Any]:
    """Return a decision; its interval stands beside it."""
    return {"kind": decision.kind, "within": decision.within, "needed": decision.needed}


def _interval(interval: Interval) -> dict[str, Any]:
    return {
        "mean": interval.mean,
        "low": interval.low,
        "high": interval.high,
        "samples": interval.samples,
        "level": 0.95,
    }


def _plain(value: Any) -> Any:
    """Return a value with null in place of what JSON has no number for."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

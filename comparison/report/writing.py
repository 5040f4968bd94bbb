"""The files of a report, each under its final name only when it is whole."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comparison.report import accounts, page, words
from comparison.report.drawn import Sheet
from comparison.report.material import Material, gather
from comparison.results.effects import Arm, Effect, Effects
from comparison.results.paired import Interval
from comparison.results.tables import headline_table
from structured_init.files import write_text


def write_report(
    folder: str | os.PathLike[str],
    baseline: str | None = None,
    controls: Mapping[str, str] | str | None = None,
    output: str | os.PathLike[str] | None = None,
) -> list[Path]:
    """Write what a comparison found, finished or not: a page, Markdown, tables and figures for a paper.

    Args:
        folder: of the comparison.
        baseline: the arm that differences refer to; the comparison's own when None.
        controls: arm → its same-positions control, or one for all arms; the comparison's own, else those found in the
            init reports, when None.
        output: the page's file; ``report.html`` in the folder when None. Everything else goes beside it.

    Returns:
        The files written, the page first.

    Raises:
        StructuredInitError: there is no comparison, an arm is unknown, or a file cannot be written.
    """
    material = gather(folder, baseline, controls)
    path = Path(output) if output is not None else Path(folder) / "report.html"
    sheet = Sheet(path.parent / "figures")
    html = page.render(material, sheet)
    texts = {
        path: html,
        path.with_suffix(".md"): markdown(material, sheet),
        path.with_name("results.csv"): material.results.to_csv(index=False),
        path.with_name("results.json"): json.dumps(record(material), indent=1) + "\n",
        path.with_name("curves.csv"): material.curves.to_csv(index=False),
    }
    for file, text in texts.items():
        write_text(file, text)
    return [*texts, *sheet.written]


def markdown(material: Material, sheet: Sheet) -> str:
    """Return the tables, what they say, and links to the figures."""
    parts = [f"# {words.title(material)}", words.lead(material)]
    if accounts.state(material):
        parts.append(f"**Not finished.** {accounts.state(material)}")
    parts.append("## Result")
    for (name, sentences), found in zip(words.all_findings(material), material.effects, strict=True):
        parts += [f"### {name}"] * bool(name) + sentences
        parts += [headline_table(found).markdown()] if found.arms else []
    parts.append(
        page.READING.replace(" Bold: the interval excludes zero. Grey: it includes zero, or has no width.", "")
    )
    for name, table in accounts.rate_tables(material):
        parts += [f"## Learning rates {name}".rstrip(), table.markdown()]
    for name, table, note in accounts.step_tables(material):
        parts += [f"## Steps to the baseline's result {name}".rstrip(), table.markdown(), note]
    if sheet.drawn:
        parts.append("## Figures")
        parts += [f"![{drawing.text}](figures/{drawing.name}.png)" for drawing in sheet.drawn]
    starts = accounts.started(material)
    if starts:
        parts.append("## What each start changed")
        parts.append("\n".join(_start_line(start) for start in starts))
    parts += ["## Runs", f"```\n{material.manifest.get('command', '')}\n```"]
    for table in (accounts.unfinished_table(material), accounts.surroundings_table(material)):
        parts += [table.markdown()] if table else []
    parts.append(accounts.provenance(material))
    return "\n\n".join(parts) + "\n"


def record(material: Material) -> dict[str, Any]:
    """Return everything that is in the tables, as plain lists, dicts, strings and numbers."""
    return {
        "comparison": material.manifest,
        "controls": material.controls,
        "effects": [_effects(found) for found in material.effects],
        "runs": [
            {
                **{"arm": run.arm, "seed": run.seed, "point": dict(run.point), "learning_rate": run.learning_rate},
                **({"failure": run.failure} if run.failure else {}),
                **(run.result or {"complete": False}),
            }
            for run in material.runs
        ],
        "missing": [
            {"arm": arm, "seed": seed, "point": dict(place), "learning_rate": rate}
            for arm, seed, place, rate in material.missing
        ],
    }


def _start_line(start: Mapping[str, Any]) -> str:
    control = f" Its same-positions control is {start['control']}." if start["control"] else ""
    return " ".join([f"- **{start['name']}**: `{start['initializer']}`. {start['summary']}{control}", *start["notes"]])


def _effects(found: Effects) -> dict[str, Any]:
    return {
        "point": dict(found.point),
        "metric": found.metric.name,
        "factor": found.metric.factor,
        "baseline": found.baseline,
        "target": found.target,
        "arms": [_arm(arm) for arm in found.arms],
    }


def _arm(arm: Arm) -> dict[str, Any]:
    reach = None
    if arm.reach is not None:
        speed_up = _interval(arm.reach.speed_up) if arm.reach.speed_up else None
        reach = {"steps": arm.reach.steps, "speed_up": speed_up, "lower_bounds": arm.reach.bounds}
    return {
        **{"arm": arm.name, "learning_rate": arm.learning_rate, "by_seed": arm.by_seed, "value": _interval(arm.value)},
        **{"to_baseline": _effect(arm.baseline), "to_control": _effect(arm.control), "reach": reach},
    }


def _effect(effect: Effect | None) -> dict[str, Any] | None:
    if effect is None:
        return None
    return {"reference": effect.reference, "by_seed": effect.by_seed, **_interval(effect.interval)}


def _interval(interval: Interval) -> dict[str, Any]:
    ends = [None if math.isinf(end) else end for end in (interval.low, interval.high)]
    return {"mean": interval.mean, "low": ends[0], "high": ends[1], "samples": interval.samples, "level": 0.95}

"""The files of a report, each under its final name only when it is whole."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shlex
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from comparison.report import panels
from comparison.report.data import ReportData, read_report_data
from comparison.report.registry import PANELS, Html, Panel, Shown, pieces
from comparison.report.theme import Drawing
from comparison.results.controls import Controls, controls_text
from comparison.results.finals import ArmResult
from comparison.results.folder import MANIFEST, asked_runs
from comparison.results.headline import headline_tables, result_tables, speed_table
from comparison.results.metric import FLAGS
from comparison.results.paired import Interval
from comparison.results.place import PlaceResult
from comparison.results.records import to_csv
from comparison.results.tables import Table, count, plain
from structured_init.util.errors import StructuredInitError
from structured_init.util.files import write_text

PAGE = "report.html"
TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")), autoescape=True, undefined=StrictUndefined
)
assert panels  # imported for what it registers

Sections = list[tuple[Panel, list[Shown]]]


def write_report(
    folder: str | os.PathLike[str],
    baseline: str | None = None,
    controls: Controls | str | None = None,
    output: str | os.PathLike[str] | None = None,
    success: float | str | None = None,
    metric: str | None = None,
    mode: str | None = None,
    names: str | None = None,
    seed: str | None = None,
    arm: str | None = None,
    tell: Callable[[str], object] = lambda text: None,
) -> list[Path]:
    """Write what a comparison found, finished or not: a page, Markdown, tables and figures for a paper.

    Args:
        folder: of the comparison; or a table, or a folder of runs, made elsewhere.
        baseline: the arm that differences refer to; the comparison's own when None.
        controls: arm → its control or controls, or one for all arms, beside those of the comparison's plan.
        output: the page's file, or the folder of its ``report.html``; when None, the folder itself, or ``table_report``
            beside ``table.csv``. Everything else goes beside it.
        success: what a run has to reach of the metric to be counted, as it is logged; ``"none"`` counts none;
            the comparison's own when None.
        metric: what is compared, where runs made elsewhere have several.
        mode: ``"max"`` or ``"min"``, whether more or less of it is better; the comparison's own when None.
        names: how runs made elsewhere are named, with ``{arm}`` and ``{seed}``.
        seed: the column of a table, or the setting of Lightning's runs, that is the seed, where it is not called so.
        arm: the column of a table that names the arm, where it is not called so.
        tell: is called with what the report begins with, in Markdown.

    Returns:
        The files written, the page first.

    Raises:
        StructuredInitError: there is no comparison, an arm is unknown, a file cannot be written, or one would be
            written over that is no earlier report's.
    """
    path = Path(output) if output is not None else default_page(Path(folder))
    path = path if path.suffix else path / PAGE
    figures_folder = path.parent / "figures"
    for place in (figures_folder, *([path.parent] if output is None and path.parent != Path(folder) else [])):
        if place.is_symlink():
            raise StructuredInitError(f"'{place}' is a link: a report is written into folders of its own, remove it")
    if path.is_dir():
        raise StructuredInitError(f"cannot write the page to '{path}', a folder: name a file, such as '{path / PAGE}'")
    text, results = path.with_name(f"{path.stem}.md"), path.with_name("results.csv")
    numbers, curves, table = (path.with_name(name) for name in ("results.json", "curves.csv", "results.tex"))
    ours = (path.parent / MANIFEST).is_file() or (path.is_file() and numbers.is_file())
    for file in (text, results, numbers, curves, table, figures_folder):
        if file.exists() and (not ours or file.samefile(folder)):
            raise StructuredInitError(
                f"'{file}' is there already, and a report would be written over it: name a page in a folder of its "
                f"own, such as --output {path.parent / path.stem / PAGE}"
            )
    data = read_report_data(folder, baseline, controls, success, metric, mode, names, seed, arm)
    given = {"--baseline": baseline, "--metric": metric, "--runs": names, "--arm": arm, "--seed": seed}
    given |= {"--control": controls_text(controls), "--success": success, "--output": output}
    options = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    options += [FLAGS[mode]] if mode else []
    commands = list(filter(None, [data.manifest.get("command")]))
    if options or data.source:
        commands.append(shlex.join(["structured-init", "report", str(folder), *options]))
    data = dataclasses.replace(data, manifest={**data.manifest, "command": "\n".join(commands)})
    sections = read_panels(data)
    texts = {
        path: page(data, sections),
        text: markdown(data, sections),
        results: to_csv(data.results),
        numbers: json.dumps(_without_nan(record(data)), indent=1, allow_nan=False) + "\n",
        curves: to_csv(data.curves),
        table: latex(data),
    }
    figures = [file for each in drawings(sections) for file in each.write(figures_folder)]
    for file, written in texts.items():
        write_text(file, written.encode(errors="backslashreplace").decode())  # a half of a character has no bytes
    tell("\n\n".join([title(data), *head(data), headline_tables(data.judged)]))
    return [*texts, *figures]


def default_page(source: Path) -> Path:
    """Return where the page of a comparison goes; of runs made elsewhere into a folder beside them."""
    if (source / MANIFEST).is_file():
        return source / PAGE
    named = source if source.name.strip(".") else source.resolve()  # "." and ".." have no name
    if not named.name:
        raise StructuredInitError(f"'{source}' is no folder of runs: name the page with --output if it is")
    return named.with_name(f"{named.stem}_report") / PAGE


def title(data: ReportData) -> str:
    """Return the experiment's name."""
    names = [str(name).rpartition("/")[2].removesuffix(".yaml") for name in data.manifest["experiment"]]
    return " + ".join(names)


def head(data: ReportData) -> list[str]:
    """Return what stands on top: what was compared, what is missing, and what was left out of runs made elsewhere."""
    arms, seeds = len(data.manifest["arms"]), Counter(run.arm for run in data.runs if run.point == data.point)
    what = f"{count(arms, 'arm')}, {count(max(seeds.values(), default=0), 'seed')}: {data.metric.words}, "
    said = [f"{what}{data.metric.better}."]
    complete = sum(run.result is not None for run in data.runs)
    if data.missing or complete < len(data.runs):
        said.append(f"Not finished: {complete} of {len(asked_runs(data.manifest))} runs are complete.")
    return said + data.manifest.get("remarks", [])


def markdown(data: ReportData, sections: Sections) -> str:
    """Return every panel in Markdown: what it says, its tables, and links to its figures."""
    parts = [f"# {plain(title(data))}", *map(plain, head(data))]
    for panel, shown in sections:
        parts.append(f"## {panel.title}")
        for piece in shown:
            if isinstance(piece, Table):
                parts.append(piece.markdown())
            elif isinstance(piece, Drawing):
                parts.append(f"![{plain(piece.text)}](figures/{piece.name}.png)")
            else:
                parts.append(plain(piece) if isinstance(piece, str) else piece.markdown)
    return "\n\n".join(filter(None, parts)) + "\n"


def latex(data: ReportData) -> str:
    """Return the tables of the result in LaTeX, of every place of the grid."""
    parts = []
    for each in data.judged:
        for table in (*result_tables(each), speed_table(each)):
            if table.rows:
                parts.append(f"% {data.place_text(each.point) or 'result'}\n{table.latex()}\n")
    return "\\bigskip\n".join(parts)


def read_panels(data: ReportData) -> Sections:
    """Return every panel that has something to show, with what it shows."""
    found = []
    for panel in PANELS:
        shown = pieces(panel, data)
        if shown:
            found.append((panel, shown))
    names = [drawing.name for drawing in drawings(found)]
    for name in names:
        if names.count(name) > 1:
            raise StructuredInitError(f"two figures are called '{name}': give each Drawing a name of its own")
    return found


def drawings(sections: Sections) -> list[Drawing]:
    """Return the figures of the panels, in their order."""
    return [piece for _, shown in sections for piece in shown if isinstance(piece, Drawing)]


def page(data: ReportData, sections: Sections) -> str:
    """Return the page."""
    css = (Path(__file__).with_name("templates") / "report.css").read_text(encoding="utf-8")
    shown = [{"name": panel.name, "title": panel.title, "html": _html(of, data)} for panel, of in sections]
    return TEMPLATES.get_template("report.html.j2").render(css=css, title=title(data), head=head(data), sections=shown)


def _html(shown: list[Shown], data: ReportData) -> Markup:
    """Return the pieces of a panel; figures that follow one another stand side by side where there is room."""
    parts = []
    for kind, group in groupby(shown, type):
        if kind is Drawing:
            parts.append(Markup('<div class="figures">{}</div>').format(Markup("").join(map(_figure, group))))
            continue
        for piece in group:
            if isinstance(piece, Table):
                parts.append(Markup(piece.html(data.colors)))
            else:
                parts.append(Markup(piece.markup) if isinstance(piece, Html) else Markup("<p>{}</p>").format(piece))
    return Markup("\n").join(parts)


def _figure(drawing: Drawing) -> Markup:
    source = f"data:image/png;base64,{b64encode(drawing.png).decode()}"
    return Markup('<figure><img alt="{0}" src="{1}"><figcaption>{0}</figcaption></figure>').format(drawing.text, source)


def record(data: ReportData) -> dict[str, Any]:
    """Return everything that is in the tables, as plain lists, dicts, strings and numbers."""
    return {
        "comparison": data.manifest,
        "places": list(map(_place, data.places)),
        "contrasts": [each.row() for place in data.places for each in place.contrasts],
        **({"successes": list(map(_successes, data.successes))} if data.successes else {}),
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


def _place(found: PlaceResult) -> dict[str, Any]:
    names = {"point": dict(found.point), "metric": found.metric.name, "factor": found.metric.factor}
    return {**names, "baseline": found.baseline, "target": found.target, "arms": list(map(_arm, found.arms))}


def _successes(found: PlaceResult) -> dict[str, Any]:
    arms = list(map(dataclasses.asdict, found.arms))
    contrasts = [each.row() for each in found.contrasts]
    return {"point": dict(found.point), "threshold": found.threshold, "arms": arms, "contrasts": contrasts}


def _arm(arm: ArmResult) -> dict[str, Any]:
    reach = None
    if arm.reach is not None:
        speed_up = _interval(arm.reach.speed_up) if arm.reach.speed_up else None
        speed_up = {**speed_up, "low": None, "high": None} if arm.reach.bound else speed_up
        reach = {"steps": arm.reach.steps, "speed_up": speed_up, "speed_up_target": arm.reach.shared}
        reach |= {"adjusted_p_value": arm.reach.adjusted, "is_faster": arm.reach.is_faster, "bound": arm.reach.bound}
        reach |= {"first": sorted(arm.reach.first), "passing": sorted(arm.reach.passing)}  # seeds
    return {
        **{"arm": arm.name, "learning_rate": arm.learning_rate, "by_seed": arm.by_seed},
        **{"diverged": list(arm.diverged), "is_control": arm.is_control},
        **({"no_learning_rate": dataclasses.asdict(arm.no_rate)} if arm.no_rate else {}),
        "value": arm.value and _interval(arm.value),
        "reach": reach,
    }


def _interval(interval: Interval) -> dict[str, Any]:
    return {**dataclasses.asdict(interval), "level": 0.95}


def _without_nan(value: Any) -> Any:
    """Return a value with null in place of what JSON has no number for."""
    if isinstance(value, Mapping):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

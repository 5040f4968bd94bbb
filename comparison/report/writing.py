"""The files of a report, each under its final name only when it is whole."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shlex
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any

from markupsafe import Markup

from comparison.report import findings, panels
from comparison.report.data import ReportData, read_report_data
from comparison.report.registry import FOLDER, PANELS, Html, Panel, Shown, pieces, render
from comparison.report.summary import summary
from comparison.report.theme import BASELINE, COLORS, Drawing
from comparison.results.controls import Controls, controls_text
from comparison.results.finals import ArmResult
from comparison.results.folder import MANIFEST
from comparison.results.headline import controls_table, headline_table
from comparison.results.metric import FLAGS
from comparison.results.paired import Interval
from comparison.results.place import PlaceResult
from comparison.results.records import to_csv
from comparison.results.tables import Table, count, plain
from structured_init.util.errors import StructuredInitError
from structured_init.util.files import write_text

PAGE = "report.html"
LIGHT = {
    **{"page": "#fcfcfa", "ink": "#20262d", "faint": "#626b76", "rule": "#e4e6e8", "strong": "#c9ced4"},
    **{"chosen": "#eceef0", "link": "#0a5f9e", "warn": "#cc5500"},
}
DARK = {
    **{"page": "#14171b", "ink": "#e7eaee", "faint": "#99a3ae", "rule": "#2a3037", "strong": "#414a54"},
    **{"chosen": "#272d34", "link": "#7cc0f5", "warn": "#f5935a"},
}
assert panels  # imported for what it registers

Sections = list[tuple[Panel, list[Shown]]]


@dataclasses.dataclass(frozen=True)
class Head:
    """What stands on top of a report, as plain text."""

    title: str
    lead: str  # what was compared
    summary: list[str]  # what a reader wants to know first
    state: str  # what is missing; empty when all is there


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
    tell: Callable[[Head], object] = lambda head: None,
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
        tell: is called with what stands on top of the report.

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
    head = Head(findings.title(data), findings.lead(data), summary(data), findings.state(data))
    texts = {
        path: page(head, data, sections),
        text: markdown(head, sections),
        results: to_csv(data.results),
        numbers: json.dumps(_without_nan(record(data)), indent=1, allow_nan=False) + "\n",
        curves: to_csv(data.curves),
        table: latex(head, data),
    }
    figures = [file for each in drawings(sections) if each.save for file in each.write(figures_folder)]
    for file, written in texts.items():
        write_text(file, written.encode(errors="backslashreplace").decode())  # a half of a character has no bytes
    tell(head)
    return [*texts, *figures]


def default_page(source: Path) -> Path:
    """Return where the page of a comparison goes; of runs made elsewhere into a folder beside them."""
    if (source / MANIFEST).is_file():
        return source / PAGE
    named = source if source.name.strip(".") else source.resolve()  # "." and ".." have no name
    if not named.name:
        raise StructuredInitError(f"'{source}' is no folder of runs: name the page with --output if it is")
    return named.with_name(f"{named.stem}_report") / PAGE


def markdown(head: Head, sections: Sections) -> str:
    """Return every panel in Markdown: what it says, its tables, and links to its figures."""
    parts = [f"# {plain(head.title)}", *map(plain, [head.lead, *head.summary])]
    parts += [f"**Not finished.** {plain(head.state)}"] if head.state else []
    for panel, shown in sections:
        parts += [f"## {panel.title}", *(text for piece in shown for text in _markdown(piece))]
    return "\n\n".join(parts) + "\n"


def latex(head: Head, data: ReportData) -> str:
    """Return the table of the result in LaTeX, of every place of the grid; how soon it is reached in a second one."""
    parts = [f"% Not finished. {head.state}"] if head.state else []
    narrow = lambda text: f"{{\\small\\setlength{{\\tabcolsep}}{{3pt}}%\n{text}\\par}}"  # noqa: E731
    for each in data.judged:
        if each.arms:
            table, place = headline_table(each), data.place_text(each.point)
            soon = ("steps ", "epochs ", "speed-up")
            late = [n for n, c in enumerate(table.columns) if c.startswith(soon) and not c.endswith(each.metric.better)]
            values = [number for number in range(len(table.columns)) if number not in late]
            parts += ["\\bigskip"] if len(parts) > bool(head.state) else []
            parts += [f"% {place or 'result'}", narrow(table.only(values).latex(place))]
            beside = controls_table(each)
            parts += ["\\bigskip\n% beside controls", narrow(beside.latex(place))] if beside else []
            parts += ["\\bigskip\n% how soon", narrow(table.only([0, *late]).latex(place))] if late else []
    return "".join(f"{part}\n" for part in parts)


def _markdown(piece: Shown) -> list[str]:
    """Return the paragraphs of a piece."""
    if isinstance(piece, Table):
        return [piece.markdown()]
    if isinstance(piece, str):
        return [plain(piece)]
    figures = [piece] if isinstance(piece, Drawing) else piece.drawings
    links = [f"![{plain(drawing.text)}](figures/{drawing.name}.png)" for drawing in figures if drawing.save]
    return [*filter(None, [getattr(piece, "markdown", "")]), *links]


def read_panels(data: ReportData) -> Sections:
    """Return every panel that has something to show, with what it shows."""
    found = [(panel, shown) for panel in PANELS if (shown := pieces(panel, data))]
    names = [drawing.name for drawing in drawings(found)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise StructuredInitError(
            f"two figures of the report are called '{twice}': give each Drawing a name of its own"
        )
    return found


def drawings(sections: Sections) -> Iterator[Drawing]:
    """Yield the figures of the panels, in their order."""
    for _, shown in sections:
        for piece in shown:
            yield from [piece] if isinstance(piece, Drawing) else getattr(piece, "drawings", ())


def page(head: Head, data: ReportData, sections: Sections) -> str:
    """Return the page."""
    css, script = ((FOLDER / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    return render(
        "report.html.j2",
        css=css,
        js=script,
        js_digest=b64encode(sha256(script.encode()).digest()).decode(),  # the policy allows this script and no other
        light=_variables(LIGHT, dark=False),
        dark=_variables(DARK, dark=True),
        **vars(head),
        arms=count(len(data.manifest["arms"]), "arm" if data.source else "initialization"),
        sections=[
            {"name": panel.name, "title": panel.title, "label": panel.label, "html": _panel_html(shown, data)}
            for panel, shown in sections
        ],
    )


def _panel_html(shown: Sequence[Shown], data: ReportData) -> Markup:
    """Return the pieces of a panel; figures that follow one another stand side by side."""
    parts = []
    for kind, group in groupby(shown, type):
        given = list(group)
        if kind is Drawing:
            figures = Markup("").join(Markup(f"<figure>{drawing.svg}</figure>") for drawing in given)
            parts.append(Markup('<div class="cards">{}</div>').format(figures))
        elif kind is Table:
            parts += [Markup(table.html(data.colors)) for table in given]
        else:
            paragraph = Markup("<p>{}</p>")
            parts += [Markup(each.markup) if isinstance(each, Html) else paragraph.format(each) for each in given]
    return Markup("\n").join(parts)


def _variables(named: Mapping[str, str], dark: bool) -> str:
    """Return the CSS declarations of a page's colours."""
    arms = {f"arm-{number}": pair[dark] for number, pair in enumerate([BASELINE, *COLORS])}
    return " ".join(f"--{name}: {value};" for name, value in {**named, **arms}.items())


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

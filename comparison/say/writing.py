"""The files of a report, each under its final name only when it is whole."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from comparison.contrasts.place import PlaceResult
from comparison.runs.folder import MANIFEST, Key
from comparison.say import panels
from comparison.say.data import ReportData, read_report_data
from comparison.say.headline import headline_tables, result_tables, speed_table
from comparison.say.registry import PANELS, Panel, Shown, pieces
from comparison.say.theme import Drawing
from comparison.tables import Table, count, plain
from structured_init.util.errors import StructuredInitError
from structured_init.util.files import write_text

PAGE = "report.html"
FOLDER = Path(__file__).with_name("templates")
LINK = "'{place}' is a link: a report is written into folders of its own, remove it"
TEMPLATES = Environment(loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined)
assert panels  # imported for what it registers

Sections = list[tuple[Panel, list[Shown]]]


def write_report(
    folder: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str] | None = None,
    tell: Callable[[str], object] = lambda text: None,
    command: str = "",
    **asked: Any,
) -> list[Path]:
    """Write what a comparison found, finished or not: a page, Markdown, tables and figures for a paper.

    Args:
        folder: of the comparison; or a table, or a folder of runs, made elsewhere.
        output: the page's file, or the folder of its ``report.html``; when None, the folder itself, or ``table_report``
            beside ``table.csv``. Everything else goes beside it.
        tell: is called with what the report begins with, in Markdown.
        command: that wrote this report, which the page repeats behind those of the comparison.
        **asked: see :class:`~comparison.say.data.Asked`, such as ``baseline="default"`` or ``metric="test/loss"``.

    Returns:
        The files written, the page first.

    Raises:
        StructuredInitError: there is no comparison, an arm is unknown, a file cannot be written, or one would be
            written over that is no earlier report's.
    """
    path = Path(output or default_page(Path(folder)))
    path = path if path.suffix else path / PAGE
    figures_folder = path.parent / "figures"
    text, results, numbers, curves, table = (
        path.with_name(name) for name in (f"{path.stem}.md", "results.csv", "results.json", "curves.csv", "results.tex")
    )
    if output is None and path.parent.is_symlink() and path.parent != Path(folder):
        raise StructuredInitError(LINK.format(place=path.parent))
    _check_places(path, [text, results, numbers, curves, table, figures_folder], Path(folder))
    data = read_report_data(folder, **asked)
    commands = "\n".join(filter(None, [data.manifest.command, command]))
    data = dataclasses.replace(data, manifest=dataclasses.replace(data.manifest, command=commands))
    sections = read_panels(data)
    texts = {
        path: page(data, sections),
        text: markdown(data, sections),
        results: data.results.to_csv(index=False),
        numbers: json.dumps(record(data), indent=1, allow_nan=False) + "\n",
        curves: data.curves.to_csv(index=False),
        table: latex(data),
    }
    figures = []
    for drawing in drawings(sections):
        figures += drawing.write(figures_folder)
    for file, written in texts.items():
        write_text(file, written.encode(errors="backslashreplace").decode())  # a half of a character has no bytes
    tell("\n\n".join([title(data), *head(data), headline_tables(data.judged)]))
    return [*texts, *figures]


def _check_places(page: Path, files: Sequence[Path], source: Path) -> None:
    """Refuse to write through a link, or over what is no earlier report's."""
    *_, figures = files
    if figures.is_symlink():
        raise StructuredInitError(LINK.format(place=figures))
    if page.is_dir():
        raise StructuredInitError(f"cannot write the page to '{page}', a folder: name a file, such as '{page / PAGE}'")
    ours = (page.parent / MANIFEST).is_file() or (page.is_file() and page.with_name("results.json").is_file())
    for file in files:
        if file.exists() and (not ours or file.samefile(source)):
            raise StructuredInitError(
                f"'{file}' is there already, and a report would be written over it: name a page in a folder of its "
                f"own, such as --output {page.parent / page.stem / PAGE}"
            )


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
    names = [str(name).rpartition("/")[2].removesuffix(".yaml") for name in data.manifest.experiment]
    return " + ".join(names)


def head(data: ReportData) -> list[str]:
    """Return what stands on top: what was compared, what is missing, and what was left out of runs made elsewhere."""
    arms, seeds = count(len(data.manifest.arms), "arm"), count(len(data.manifest.asked_seeds()), "seed")
    said = [f"{arms}, {seeds}: {data.metric.words}, {data.metric.better}."]
    complete = sum(run.result is not None for run in data.runs)
    if data.missing or complete < len(data.runs):
        said.append(f"Not finished: {complete} of {len(data.manifest.asked_runs())} runs are complete.")
    return [*said, *data.manifest.remarks]


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
                parts.append(f"% {data.place_text(each.point) or 'result'}\n{table.latex()}")
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
    css = (FOLDER / "report.css").read_text(encoding="utf-8")
    known = {"css": css, "title": title(data), "head": head(data), "colors": data.colors, "sections": sections}
    return TEMPLATES.get_template("report.html.j2").render(known)


def record(data: ReportData) -> dict[str, Any]:
    """Return everything that is in the tables, as plain lists, dicts, strings and numbers; None for what is none."""
    runs = []
    for run in data.runs:
        runs.append({**_run(run.key), "failure": run.failure, "not_captured": run.missing, **(run.result or {})})
    found = {
        "comparison": data.manifest.plain(),
        "places": list(map(_place, data.places)),
        "contrasts": [each.row() for place in data.places for each in place.contrasts],
        "successes": list(map(_counted, data.successes)),
        "runs": runs,
        "missing": list(map(_run, data.missing)),
    }
    # JSON has no NaN and no infinity: they are read as None. Sets are lists in it.
    return json.loads(json.dumps(found, default=sorted), parse_constant=lambda _: None)


def _place(found: PlaceResult) -> dict[str, Any]:
    """Return the arms of a place of the grid: means, or counts of runs that succeed."""
    known = {"point": dict(found.point), "metric": found.metric.name, "factor": found.metric.factor}
    known |= {"baseline": found.baseline, "target": found.target, "threshold": found.threshold}
    return known | {"arms": list(map(dataclasses.asdict, found.arms))}


def _counted(found: PlaceResult) -> dict[str, Any]:
    """Return the same of counts, with the contrasts that are theirs."""
    return {**_place(found), "contrasts": [each.row() for each in found.contrasts]}


def _run(key: Key) -> dict[str, Any]:
    """Return what tells a run from every other."""
    arm, seed, point, rate = key
    return {"arm": arm, "seed": seed, "point": dict(point), "learning_rate": rate}

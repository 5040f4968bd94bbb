"""The page: every panel of the registry, in its order, in one file that needs nothing else."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import groupby

from markupsafe import Markup

from comparison.report import panels, sentences, theme
from comparison.report.answers import answers
from comparison.report.data import ReportData
from comparison.report.drawing import Drawing
from comparison.report.registry import PANELS, Html, Panel, pieces
from comparison.report.rendering import render, source
from comparison.results.tables import Table
from structured_init.errors import StructuredInitError

LIGHT = {
    **{"page": "#fcfcfa", "ink": "#20262d", "faint": "#626b76", "rule": "#e4e6e8", "strong": "#c9ced4"},
    **{"chosen": "#eceef0", "link": "#0a5f9e", "warn": "#cc5500"},
}
DARK = {
    **{"page": "#14171b", "ink": "#e7eaee", "faint": "#99a3ae", "rule": "#2a3037", "strong": "#414a54"},
    **{"chosen": "#272d34", "link": "#7cc0f5", "warn": "#f5935a"},
}

Sections = list[tuple[Panel, list[str | Table | Drawing | Html]]]
assert panels  # imported for what it registers


def read_panels(data: ReportData) -> Sections:
    """Return every panel that has something to show, with what it shows.

    Raises:
        StructuredInitError: two figures have one name.
    """
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


def page(data: ReportData, sections: Sections) -> str:
    """Return the page."""
    shown = [
        {"name": panel.name, "title": panel.title, "label": panel.label, "html": _html(given, data)}
        for panel, given in sections
    ]
    script = source("report.js")
    return render(
        "report.html.j2",
        css=source("report.css"),
        js=script,
        js_digest=b64encode(sha256(script.encode()).digest()).decode(),  # the policy allows this script and no other
        light=_variables(dark=False),
        dark=_variables(dark=True),
        title=sentences.title(data),
        lead=sentences.lead(data),
        state=sentences.state(data),
        answers=answers(data),
        arms=sentences.count(len(data.manifest["arms"]), "arm" if data.source else "initialization"),
        sections=shown,
    )


def _html(shown: Sequence[str | Table | Drawing | Html], data: ReportData) -> Markup:
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
            parts += [each.markup if isinstance(each, Html) else Markup("<p>{}</p>").format(each) for each in given]
    return Markup("\n").join(parts)


def _variables(dark: bool) -> str:
    named = DARK if dark else LIGHT
    return " ".join(f"--{name}: {value};" for name, value in named.items()) + " " + theme.variables(dark)

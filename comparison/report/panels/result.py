"""The result: what was found, the headline table, and the paired differences, at every place of the grid."""

from __future__ import annotations

from markupsafe import Markup

from comparison.report.data import ReportData
from comparison.report.differences import CONTROLS, difference_figure
from comparison.report.drawing import Drawing
from comparison.report.registry import Html, Piece, heading, register_panel, table
from comparison.report.sentences import all_findings
from comparison.results.effects import Effects
from comparison.results.tables import headline_table

READING = (
    "± is the half width of a 95 % Student t interval over seeds; differences are taken within a seed, whose runs "
    "share data order, augmentation and dropout. Final values, not best ones; the test split was read once."
)
TYPE = " Bold: the interval excludes zero. Grey: it includes zero, has no width, or an arm diverged."


@register_panel("Result")
def result(data: ReportData) -> list[Piece]:
    """Return findings, table and differences of every place, and how to read them."""
    shown: list[Piece] = []
    for (name, sentences), found in zip(all_findings(data), data.effects, strict=True):
        findings = Markup('<div class="findings">{}</div>').format(
            Markup("").join(Markup("<p>{}</p>").format(sentence) for sentence in sentences)
        )
        shown += [*heading(name), Html(findings, "\n\n".join(sentences))]
        if found.arms:
            shown.append(table(data, headline_table(found), "stacked"))
        figures = _differences(data, found)
        if figures:
            svgs = Markup("").join(Markup(f"<figure>{each.svg}</figure>") for each in figures)
            shown.append(Html(Markup('<div class="pair">{}</div>').format(svgs), drawings=figures))
    return [*shown, Html(Markup('<p class="small">{}</p>').format(READING + TYPE), READING)]


def _differences(data: ReportData, found: Effects) -> list[Drawing]:
    """Return the paired differences to the baseline and to the controls."""
    drawings = []
    for to in ("baseline", "control", "scrambled"):
        figure = difference_figure(found, data.styles, to)
        if figure is not None:
            place = data.place_text(found.point)
            text = f"Paired differences in {found.metric.words} to {CONTROLS.get(to, 'the baseline')}"
            text += f" at {place}" if place else ""
            drawings.append(Drawing(figure, data.place_name(f"differences_to_{to}", found.point), text))
    return drawings

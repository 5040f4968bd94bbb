"""The result: what was found, the headline table, and the paired differences, at every place of the grid."""

from __future__ import annotations

from markupsafe import Markup

from comparison.report.data import ReportData
from comparison.report.decided import level_text
from comparison.report.differences import CONTROLS, difference_figure
from comparison.report.drawing import Drawing, plot_share
from comparison.report.registry import Html, Piece, heading, note, register_panel, table
from comparison.report.sentences import all_findings
from comparison.report.success_figure import success_figure
from comparison.report.success_sentences import success_findings, suggestion
from comparison.results.effects import Effects
from comparison.results.success import Successes
from comparison.results.success_table import success_table, threshold_text
from comparison.results.tables import headline_table

READING = (
    "± is the half width of a 95 % Student t interval over seeds; differences are taken within a seed, whose runs "
    "share data order, augmentation and dropout. Final values, not best ones; the test split was read once."
)
READING_ELSEWHERE = (
    "± is the half width of a 95 % Student t interval over seeds; differences are taken within a seed: the more the "
    "runs of a seed share, the narrower the interval. Final values, not best ones."
)
FAMILY = (
    " p: paired t-test, adjusted by Holm’s method for all arms of its column. If no arm differs, one comparison in "
    "twenty finds a difference in any of them."
)
TYPE = " Bold: the adjusted p is below 0.05. Grey: it is not, the interval has no width, or an arm diverged."
COUNTING = (
    "A run succeeds by its final value; a run that diverged has not succeeded. Each count has the exact 95 % interval "
    "of the share (Clopper and Pearson). p: Fisher’s exact test, adjusted by Holm’s method for all arms of its column. "
    "Steps are counted to the first validation that is as good, interpolated linearly between evaluations. A run that "
    "never gets there is censored (Kaplan and Meier) and ends at a tick in the picture. The interval of the median is "
    "that of Brookmeyer and Crowley."
)


@register_panel("Result")
def result(data: ReportData) -> list[Piece]:
    """Return findings, table and differences of every place, and how to read them."""
    shown: list[Piece] = []
    counted = data.successes or [None] * len(data.effects)
    for (name, sentences), found, successes in zip(all_findings(data), data.effects, counted, strict=True):
        if successes is not None:
            shown += [*heading(name), *_counted(data, successes)]
            continue
        sentences = [*sentences, *suggestion(found)]
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
    if data.successes:
        return [*shown, note(COUNTING)]
    asked = next((found.question for found in data.effects if found.question), None)
    reading = READING_ELSEWHERE if data.source else READING
    reading = f"{level_text(asked)} {reading}" if asked else reading + FAMILY
    return [*shown, Html(Markup('<p class="small">{}</p>').format(reading + TYPE), reading)]


def _counted(data: ReportData, found: Successes) -> list[Piece]:
    """Return what is said of runs that succeed or do not: in place of means, which are the value of none of them."""
    sentences = success_findings(found)
    findings = Markup('<div class="findings">{}</div>').format(
        Markup("").join(Markup("<p>{}</p>").format(sentence) for sentence in sentences)
    )
    shown: list[Piece] = [Html(findings, "\n\n".join(sentences))]
    if found.arms:
        shown.append(table(data, success_table(found), "stacked"))
    figure = success_figure(found, data.styles)
    if figure is not None:
        place = data.place_text(found.point)
        text = f"Share of runs with {threshold_text(found)} over the steps{f' at {place}' if place else ''}"
        drawing = Drawing(figure, data.place_name("successes", found.point), text)
        markup = Markup('<figure class="wide plot" style="--plot: {}"><div class="scroll">{}</div></figure>')
        shown.append(Html(markup.format(plot_share(drawing), Markup(drawing.svg)), drawings=[drawing]))
    return shown


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

"""The result: what was found, the headline table and the paired differences; what could be seen; learning rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from comparison.report.data import ReportData
from comparison.report.findings import findings, level_text, suggestion
from comparison.report.registry import Html, Piece, heading, note, register_panel, table
from comparison.report.theme import (
    FAINT,
    INK,
    LABEL,
    Drawing,
    Style,
    figure_settings,
    label_ends,
    new_figure,
    plot_share,
)
from comparison.results.contrasts import BASELINE, Contrast
from comparison.results.folder import chosen_learning_rates, read_manifest
from comparison.results.headline import (
    controls_table,
    decimals,
    diverged_text,
    headline_table,
    learning_rate_table,
    share_text,
    threshold_text,
)
from comparison.results.metric import Metric
from comparison.results.paired import FEWEST_FOR_INTERVAL, Interval
from comparison.results.place import PlaceResult
from comparison.results.power import power_sentence, power_table
from comparison.results.tables import interval_text, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HALF_WIDTH = "± is the half width of a 95 % Student t interval over seeds. "
READING = "Differences are taken within a seed: {}. Values are final, not best ones{}."
SHARED = "its runs share data order, augmentation and dropout"
READING_ELSEWHERE = READING.format("the more the runs of a seed share, the narrower the interval", "")
SHARES = (
    " The interval of a mean of shares is taken on the scale of logits; its ends stand where its sides differ by more "
    "than a tenth of the half width."
)
FAMILY = (
    "p: paired t-test, adjusted by Holm’s method for all differences of this page that are judged: to the baseline, "
    "at every place of the grid, and of arms to their controls. If no arm differs, one page in twenty calls any of "
    "them better or worse; up to one in five where arms are skewed and the baseline is steadier. Speed-ups are judged "
    "among themselves, in the same way."
)
TYPE = " Bold: the adjusted p is below 0.05. Grey: it is not, the interval has no width, or nothing is judged."
COUNTING = (
    "A run succeeds by its final value; a run that diverged has not succeeded. Each count has the exact 95 % interval "
    "of the share (Clopper and Pearson). p: Fisher’s exact test, adjusted by Holm’s method for all that is judged."
)
TIMING = (
    " The picture and the steps are of {}: steps are counted to the first evaluation that is as good, "
    "interpolated linearly between evaluations. A run that is as good at its first one may have been so before "
    "(≤ in the table). A run that never gets there is censored (Kaplan and Meier) and ends at a tick in the picture. "
    "The interval of the median is that of Brookmeyer and Crowley."
)
POWER_HOW = (
    "The probability is that of the verdict “better” or “worse” among all that is judged, or a little less: paired "
    "t-tests at Bonferroni's level (noncentral t distribution). The interval of the effect follows from the 95 % "
    "interval of the deviation. “Seeds” is how many it takes for a 95 % t interval of that half width."
)
RATES_WHY = (
    "Each arm is trained with its own learning rate: the one that was best on the validation split, averaged over "
    "its seeds."
)


@register_panel("Result")
def result(data: ReportData) -> list[Piece]:
    """Return findings, table and figures of every place of the grid, and how to read them.

    Where a threshold was given, they are of runs that succeed or do not, in place of means, which are the value of
    none.
    """
    shown: list[Piece] = []
    for found in data.judged:
        sentences = [*findings(found), *suggestion(found)]
        paragraphs = Markup("").join(Markup("<p>{}</p>").format(sentence) for sentence in sentences)
        markup = Markup('<div class="findings">{}</div>').format(paragraphs)
        shown += [*heading(data.place_text(found.point)), Html(markup, "\n\n".join(map(plain, sentences)))]
        if found.arms:
            shown.append(table(data, headline_table(found), "stacked"))
        if (beside := controls_table(found)) is not None:
            shown.append(table(data, beside, "stacked"))
        shown += _figures(data, found)
    if data.successes:
        timed = any(arm.times for found in data.judged for arm in found.arms)
        curve = Metric(data.metric.on_validation)
        split = "the validation split" if curve.name.startswith("val/") else f"the curves of {curve.words}"
        return [*shown, note(COUNTING + (TIMING.format(split) if timed else ""))]
    asked = next((found.question for found in data.places if found.question), None)
    reading = READING_ELSEWHERE if data.source else READING.format(SHARED, _read(data))
    arms = [arm for found in data.places for arm in found.arms]
    contrasts = [each for found in data.places for each in found.competing]
    known = [*(arm.value for arm in arms if arm.value), *(each.interval for each in contrasts if each.interval)]
    if any(each.samples >= FEWEST_FOR_INTERVAL for each in known):
        means = ((found.metric, [arm.value.mean for arm in found.arms if arm.value]) for found in data.places)
        reading = HALF_WIDTH + reading + (SHARES if any(metric.is_share(of) for metric, of in means if of) else "")
    reading = f"{level_text()} {reading}" if asked else reading
    family = [note(FAMILY)] if any(each.adjusted is not None for each in contrasts) else []
    small = Markup('<p class="small">{}</p>').format(reading + (TYPE if asked or family else ""))
    return [*shown, Html(small, reading), *family]


def _read(data: ReportData) -> str:
    """Say whether all of the test split was read; nothing where the metric is of another."""
    if not data.metric.name.startswith("test/"):
        return ""
    limits = [place.get("trainer.limit_test_batches") for place in data.at_places.values() or [data.settings]]
    whole = all(limit is None or str(limit) == "1.0" for limit in limits)  # 1 is a batch
    return f"; {'' if whole else 'a part of '}the test split was read once"


def _figures(data: ReportData, found: PlaceResult) -> list[Html]:
    """Return how soon runs succeed, or the paired differences to the baseline and to the controls, side by side."""
    place = data.place_text(found.point)
    at = f" at {place}" if place else ""
    if found.threshold is not None:
        figure = success_figure(found, data.styles)
        if figure is None:
            return []
        text = f"Share of runs that have reached {threshold_text(found, on_validation=True)}, over the steps{at}"
        drawing = Drawing(figure, data.place_name("successes", found.point), text)
        markup = Markup('<figure class="wide plot" style="--plot: {}"><div class="scroll">{}</div></figure>')
        return [Html(markup.format(plot_share(drawing), Markup(drawing.svg)), drawings=[drawing])]
    drawings = [
        Drawing(
            figure,
            data.place_name(f"differences_to_{name}", found.point),
            f"Paired differences in {found.metric.words} to {'the baseline' if name == BASELINE else 'controls'}{at}",
        )
        for name in (BASELINE, "controls")
        if (figure := difference_figure(found, data.styles, name)) is not None
    ]
    svgs = Markup("").join(Markup(f"<figure>{each.svg}</figure>") for each in drawings)
    return [Html(Markup('<div class="pair">{}</div>').format(svgs), drawings=drawings)] if drawings else []


def difference_figure(found: PlaceResult, styles: Mapping[str, Style], to: str) -> Figure | None:
    """Draw paired differences: a dot per seed, the mean and its 95 % t interval."""
    shown = [each for each in found.contrasts if (each.role == BASELINE) == (to == BASELINE)]
    if not shown:
        return None
    names = [each.arm if to == BASELINE else f"{each.arm} − {each.reference}" for each in shown]
    arms = {arm.name: arm for arm in found.arms}
    with figure_settings():
        wide = 4.5 + 0.06 * max(0, max(map(len, names)) - 16)  # inches: long names take none of the axis
        figure = new_figure(wide, 0.36 * len(shown) + 0.75)
        axis = figure.subplots()
        axis.set_xlim(*_limits(shown))
        axis.axvline(0, color=FAINT, linewidth=0.9)
        for row, each in enumerate(shown):
            assert each.interval is not None
            _row(axis, row, styles[each.arm].paper, each.interval, list(each.by_seed.values()))
            at = {"xycoords": ("axes fraction", "data"), "va": "center", "annotation_clip": False}
            color = INK if each.verdict in ("better", "worse") else FAINT
            text = interval_text(each.interval, decimals(found), signed=True)
            text += f" ({diverged_text(arms[each.arm])})" if arms[each.arm].diverged else ""
            axis.annotate(text, (1.03, row), color=color, **at)
        axis.set_yticks(range(len(shown)), names)
        for label, each in zip(axis.get_yticklabels(), shown, strict=True):
            label.set_color(styles[each.arm].paper)
            label.set_fontweight("bold")
        axis.set_ylim(len(shown) - 0.45, -0.55)
        axis.grid(axis="y", visible=False)
        axis.tick_params(axis="y", pad=7)
        axis.spines["left"].set_visible(False)
        unit = f" ({found.metric.unit})" if found.metric.unit else ""
        axis.set_xlabel(f"difference in {found.metric.words}{unit}; {found.metric.better}")
        axis.set_title(f"Difference to {found.baseline if to == BASELINE else to}")
        least = 1e-9 * max(axis.get_xlim())
        axis.xaxis.set_major_formatter(lambda x, _: f"{x:+g}".replace("-", "−") if abs(x) > least else "0")
        figure.draw_without_rendering()  # what names and texts leave of the width is known only now
        room = axis.bbox.width / max(label.get_window_extent().width for label in axis.get_xticklabels())
        axis.locator_params(axis="x", nbins=max(1, min(8, int(room / 1.4))))  # a gap of 0.4 labels
    return figure


def _limits(shown: Sequence[Contrast]) -> tuple[float, float]:
    """Return the ends of the axis: all dots are on it, and of intervals as much as does not hide them."""
    intervals = [each.interval for each in shown if each.interval is not None]
    dots = [value for each in shown for value in each.by_seed.values()]
    farthest = max(map(abs, dots))
    finite = [max(abs(i.low), abs(i.high)) for i in intervals if i.samples > 1]
    reach = 1.12 * min(max([farthest, *finite]), 2.2 * farthest) or 1.0
    ends = [(i.low, i.high) if math.isfinite(i.half_width) else (i.mean, i.mean) for i in intervals]
    lowest = min(0.0, *dots, *(max(-reach, low) for low, _ in ends))
    highest = max(0.0, *dots, *(min(reach, high) for _, high in ends))
    margin = 0.06 * (highest - lowest) or 1.0
    return lowest - margin, highest + margin


def _row(axis: Axes, row: int, color: str, interval: Interval, values: Sequence[float]) -> None:
    left, right = axis.get_xlim()
    axis.plot(values, [row + 0.2] * len(values), "o", color=color, markersize=3.4, alpha=0.5, markeredgewidth=0)
    if not math.isinf(interval.half_width) and interval.samples >= FEWEST_FOR_INTERVAL:
        low, high = max(interval.low, left), min(interval.high, right)
        axis.plot([low, high], [row, row], color=color, linewidth=2.2, alpha=0.9)
        for end, shown, mark in ((interval.low, low, "<"), (interval.high, high, ">")):
            if end != shown:  # the interval goes on beyond the picture
                axis.plot([shown], [row], mark, color=color, markersize=5, clip_on=False)
    axis.plot([interval.mean], [row], "D", color=color, markersize=4.6, markeredgecolor="white", markeredgewidth=0.6)


def success_figure(found: PlaceResult, styles: Mapping[str, Style]) -> Figure | None:
    """Draw Kaplan and Meier's curves upside down; None where no run has a curve."""
    shown = {arm.name: arm for arm in found.arms if arm.times is not None}
    if not shown:
        return None
    last = max(max([*arm.times.steps, *arm.times.censored]) for arm in shown.values() if arm.times)
    with figure_settings():
        figure = new_figure(6.6, max(2.9, LABEL * len(shown) + 0.9))
        axis = figure.subplots()
        ends = {}
        for name, arm in shown.items():
            assert arm.times is not None
            style = styles[name]
            y = [0.0, *(100 * share for share in arm.times.shares)]
            x, y = [0.0, *arm.times.steps, last], [*y, y[-1]]
            axis.step(x, y, where="post", color=style.paper, linestyle=style.dash, linewidth=1.7, solid_capstyle="butt")
            # A run that ends without success, where the arm's line stands then.
            stands = [max([0.0, *(v for at, v in zip(x, y, strict=True) if at <= end)]) for end in arm.times.censored]
            axis.plot(arm.times.censored, stands, "|", color=style.paper, markersize=6, clip_on=False)
            ends[name] = y[-1]
        axis.set_xlim(0, 1.005 * last)
        axis.set_ylim(-3, 103)
        axis.set_yticks([0, 25, 50, 75, 100])
        axis.grid(axis="x", visible=False)
        axis.set_xlabel(found.counted)
        axis.set_title(f"runs that have reached {threshold_text(found, on_validation=True)}, in %")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        label_ends(axis, ends, styles, {name: f"{name} {share_text(arm.times)}" for name, arm in shown.items()})
    return figure


@register_panel("What this comparison can see", label="Power")
def power(data: ReportData) -> list[Piece]:
    """Return a sentence and a table per place of the grid; nothing where no two differences of a pair are known.

    Nothing either where successes are counted: their report speaks of no means.
    """
    shown: list[Piece] = []
    for found in [] if data.successes else data.places:
        known = power_table(found)
        if known is not None:
            shown += [*heading(data.place_text(found.point)), power_sentence(found), table(data, known, "tight")]
    return [*shown, note(POWER_HOW)] if shown else []


@register_panel("Learning rates")
def learning_rates(data: ReportData) -> list[Piece] | None:
    """Return a table per place of the grid; None where nothing was to be chosen."""
    chosen = chosen_learning_rates(data.folder)
    if not chosen:
        return None
    made = read_manifest(data.folder)  # what chose the rates, whatever the metric of the report
    chose = Metric(Metric(made["metric"]).on_validation, made["mode"])
    shown: list[Piece] = [f"{RATES_WHY} It was chosen by {chose.words}, {chose.better}."]
    for place, arms in chosen.items():
        shown += [*heading(place if len(chosen) > 1 else ""), table(data, learning_rate_table(arms, chose))]
    return shown

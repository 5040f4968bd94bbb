"""The result: the tables, what their numbers mean, and the paired differences of every seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from comparison.contrasts.contrasts import LOOKS
from comparison.contrasts.place import PlaceResult
from comparison.say.data import ReportData
from comparison.say.headline import notice, result_tables
from comparison.say.registry import Piece, explanation, heading, register_panel
from comparison.say.theme import FAINT, Drawing, figure_settings, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEANS = (
    "Final values, not best ones. ±: half width of the 95 % Student t interval over seeds; both ends where its sides "
    "differ; none where all seeds agree. Differences are taken within a seed. "
    "p: paired t-test, adjusted by Holm’s method for all differences of this page that are judged; below 0.05 an arm "
    "is better or worse. An arm that diverged in some seeds is not judged better. A gain is beyond its controls where "
    "every one is exceeded; – says that there is no gain to ask about."
)
DECIDED = (
    "Final values. Differences are taken within a seed. Their intervals allow for adding seeds: Student’s t with an "
    f"equal part of the error at each look, at {', '.join(map(str, LOOKS))} pairs; those that decide hold jointly at "
    "95 %. A gain is beyond its controls where every one is exceeded."
)
COUNTS = (
    "A run succeeds by its final value; one that diverged has not. Counts have the exact 95 % interval of the share "
    "(Clopper and Pearson). p: Fisher’s exact test, adjusted by Holm’s method for all that is judged."
)


@register_panel("Result")
def result(data: ReportData) -> list[Piece]:
    """Return the tables and the paired differences of every place of the grid.

    Where a threshold was given, they are of runs that succeed or do not, in place of means, which are the value of
    none.
    """
    shown: list[Piece] = []
    for found in data.judged:
        shown += [*heading(data.place_text(found.point)), *result_tables(found)]
        if said := notice(found):
            shown.append(said)
        if any(each.by_seed for each in found.contrasts):
            text = f"Paired differences in {found.metric.words}: dots are seeds, bars 95 % intervals"
            name = data.place_name("differences", found.point)
            shown.append(Drawing(difference_figure(found, data), name, text))
    if data.successes:
        return [*shown, explanation(COUNTS)]
    return [*shown, explanation(DECIDED if data.manifest.question else MEANS)]


def difference_figure(found: PlaceResult, data: ReportData) -> Figure:
    """Draw paired differences to the baseline and to controls: a dot per seed, the mean and its 95 % interval."""
    shown = [each for each in found.contrasts if each.by_seed]
    with figure_settings():
        figure = new_figure(6.6, 0.3 * len(shown) + 0.6)
        axis = figure.subplots()
        axis.axvline(0, color=FAINT, linewidth=0.9)
        for row, each in enumerate(shown):
            assert each.interval is not None
            color = data.styles[each.arm].paper
            axis.plot(list(each.by_seed.values()), [row + 0.2] * each.pairs, "o", color=color, markersize=3, alpha=0.5)
            axis.plot([each.interval.mean], [row], "D", color=color, markersize=4.6)
        low, high = axis.get_xlim()  # of the dots: an interval of few seeds may be far wider
        room = high - low
        for row, each in enumerate(shown):
            assert each.interval is not None
            if each.interval.is_known:
                ends = max(each.interval.low, low - room), min(each.interval.high, high + room)
                axis.hlines(row, *ends, color=data.styles[each.arm].paper, linewidth=2)
        axis.set_yticks(range(len(shown)), [f"{each.arm} − {each.reference}" for each in shown])
        axis.set_ylim(len(shown) - 0.5, -0.5)
        axis.grid(axis="y", visible=False)
        axis.set_xlabel(f"difference in {found.metric.words}{found.metric.points}; {found.metric.better}")
    return figure

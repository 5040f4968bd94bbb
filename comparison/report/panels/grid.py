"""The grid as a whole: means at its places, interquartile means, probabilities of improvement, performance profiles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from comparison.report.data import ReportData
from comparison.report.findings import listed
from comparison.report.registry import Piece, note, register_panel, table
from comparison.report.theme import LABEL, Drawing, Style, figure_settings, label_ends, new_figure
from comparison.results.aggregate import Aggregate
from comparison.results.headline import decimals
from comparison.results.paired import FEWEST_FOR_INTERVAL, Interval
from comparison.results.place import PlaceResult
from comparison.results.tables import Cell, Table, count, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLACES = "Means at the places of the grid; bars are 95 % intervals of a mean, not of a difference"
ENOUGH = 10  # seeds at every place, with which the intervals cover nearly what they say
WHAT = (
    "All places of the grid are pooled without rescaling: a place with larger values weighs more in the mean, but not "
    "in the probability. The interquartile mean is the mean of the middle half of all runs."
)


@register_panel("Over the whole grid", label="Grid", after="result")
def grid(data: ReportData) -> list[Piece] | None:
    """Return means at all places and, of a grid that all arms have runs on, a table and the profiles; else None."""
    found, some = data.whole_grid, sum(bool(each.arms) for each in data.places) > 1
    places: list[Piece] = [Drawing(places_figure(data.places, data.styles), "places", PLACES)] if some else []
    if found is None:
        return places or None
    figure = profile_figure(found, data.styles)
    text = f"Share of runs over the {found.metric.words} that they reach, all places of the grid together"
    digits = max(map(decimals, data.places))
    arms, between, both = (
        f"{number(each.mean, digits)} ({_ends(each, digits)})"
        for each in (found.between_arms, found.between_places, found.interaction)
    )
    return [
        *places,
        (
            f"Means of {found.metric.label} lie {between} apart between places of the grid, and {arms} between "
            f"initializations. One is up to {both} off the sum of the two: the largest interaction of all places, "
            "which is above zero by chance as well."
            + (" The first sentences say whether any is shown." if found.fewest > 1 else "")
        ),
        WHAT,
        table(data, aggregate_table(found, digits), "tight"),
        Drawing(figure, "profiles", text),
        note(_how(found, data)),
    ]


def places_figure(found: Sequence[PlaceResult], styles: Mapping[str, Style]) -> Figure:
    """Draw the mean of every arm at every place, equally far apart; places of numbers go by size, joined by lines."""
    ordered, joined = [each for each in found if each.arms], False
    with suppress(ValueError):
        ordered = sorted(ordered, key=lambda each: [float(value) for _, value in each.point])
        joined = True
    names = list(dict.fromkeys(arm.name for each in ordered for arm in each.arms))
    with figure_settings():
        figure = new_figure(6.6, max(2.9, LABEL * len(names) + 0.9))
        axis = figure.subplots()
        ends = {}
        for index, name in enumerate(names):
            own = [
                (x, arm.value) for x, each in enumerate(ordered) for arm in each.arms if arm.name == name and arm.value
            ]
            if not own:
                continue
            places = np.array([x for x, _ in own]) + 0.03 * (index - (len(names) - 1) / 2)
            means = np.array([value.mean for _, value in own])
            known = lambda v: v.samples >= FEWEST_FOR_INTERVAL and math.isfinite(v.half_width)  # noqa: E731
            low, high = zip(*((v.low, v.high) if known(v) else (v.mean, v.mean) for _, v in own), strict=True)
            color, dash = styles[name].paper, styles[name].dash if joined else "none"
            axis.vlines(places, low, high, color=color, linewidth=1.0)
            axis.plot(places, means, marker="o", color=color, linestyle=dash, linewidth=1.6, markersize=4)
            ends[name] = float(means[-1])
        axis.set_xticks(range(len(ordered)), ["\n".join(value for _, value in each.point) for each in ordered])
        axis.set_xlabel(", ".join(key.rpartition(".")[2] for key, _ in ordered[0].point))
        axis.set_title(ordered[0].metric.label)
        label_ends(axis, ends, styles)
    return figure


def aggregate_table(found: Aggregate, digits: int) -> Table:
    """Return a row per arm: its interquartile mean, and how likely a run of it is better than one of the baseline."""
    mean = f"interquartile mean, {found.metric.label}, {found.metric.better}"
    rows = []
    for arm in found.arms:
        better = Cell("baseline")
        if (share := arm.improvement) is not None:
            better = Cell(f"{100 * share.mean:.0f} %", f"{100 * share.low:.0f} to {100 * share.high:.0f}")
        middle = Cell(number(arm.mean.mean, digits), _ends(arm.mean, digits))
        rows.append([Cell(arm.name, arm=arm.name), middle, better])
    return Table(["arm", mean, f"better than {found.baseline}"], rows)


def profile_figure(found: Aggregate, styles: Mapping[str, Style]) -> Figure:
    """Draw the share of runs that are as good as a value, for every value; bands are pointwise 95 % intervals."""
    with figure_settings():
        figure = new_figure(6.6, max(2.9, LABEL * len(found.arms) + 0.9))
        axis = figure.subplots()
        middles = {}
        for arm in found.arms:
            style = styles[arm.name]
            axis.fill_between(
                found.thresholds, 100 * arm.low, 100 * arm.high, color=style.paper, alpha=0.12, linewidth=0
            )
            axis.plot(found.thresholds, 100 * arm.profile, color=style.paper, linestyle=style.dash, linewidth=1.6)
            middles[arm.name] = 100 * float(np.mean(arm.profile))  # the order of the labels: by the area below
        axis.set_xlim(found.thresholds[0], found.thresholds[-1])
        axis.set_ylim(-2, 102)
        axis.grid(axis="x", visible=False)
        axis.set_xlabel(found.metric.label)
        axis.set_title(f"runs with that much or {'less' if found.metric.mode == 'min' else 'more'}, %")
        label_ends(axis, middles, styles, threads=False)
    return figure


def _ends(interval: Interval, digits: int) -> str:
    return f"{number(interval.low, digits)} to {number(interval.high, digits)}"


def _how(found: Aggregate, data: ReportData) -> str:
    lacking = [
        f"{data.place_text(point)}, where {f'{listed(arms)} gave no number' if arms else 'no seed has all arms'}"
        for point, arms in found.without.items()
    ]
    places = f"{found.places} places of the grid."
    if lacking:
        places = f"{found.places} of {found.places + len(lacking)} places of the grid: without {'; '.join(lacking)}."
    if found.lost:
        seeds = ", ".join(map(str, found.seeds))
        places += f" Seeds there that all arms have: {seeds}, which leaves out {count(found.lost, 'run')}."
    few = ""
    if found.fewest < FEWEST_FOR_INTERVAL:
        few = f" With {count(found.fewest, 'seed')} at a place they are far too narrow: read none of them."
    elif found.fewest < ENOUGH:
        few = (
            f" With {found.fewest} seeds at a place they are too narrow: simulated with 3 seeds at 3 places they hold "
            "the truth in 80 to 87 %, with 5 seeds in 89 to 92 %, with 10 in 90 to 94 %."
        )
    return (
        f"{places} Probability: that a run is better than one of {found.baseline} at the "
        "same place, over all pairs of runs, averaged over places. Intervals: 95 %, seeds are resampled at every place "
        f"(stratified bootstrap). The method is that of Agarwal et al. 2021.{few}"
    )

"""Learning curves, one shown and others to choose, and the steps that every seed takes to the baseline's result."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from comparison.report.data import ReportData
from comparison.report.registry import Html, Piece, heading, note, register_panel, render, table
from comparison.report.theme import (
    FAINT,
    FONT,
    INK,
    Drawing,
    Style,
    figure_settings,
    label_ends,
    new_figure,
    plot_share,
)
from comparison.results.finals import ArmResult, curves_by_seed
from comparison.results.folder import Point, point_label
from comparison.results.headline import decimals, target_text
from comparison.results.metric import Metric
from comparison.results.place import PlaceResult
from comparison.results.records import chosen_at
from comparison.results.tables import Cell, Table
from comparison.results.targets import Curve, steps_text

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_CURVES = 48  # on the page: beyond it, and with a plot for each arm, only the headline metric and the loss
AXIS_WORDS = {"step": "steps", "samples": "samples", "seconds": "time"}
AXES = {"step": "optimizer steps", "samples": "training samples seen", "seconds": "training time (seconds)"}
MOST_POINTS, MOST_POINTS_APART = 300, 60
MOST_TOGETHER = 8
EQUALLY_LONG = 1.1  # of the seconds per step of the arms, the longest over the shortest
COLUMNS = 4
FEWEST_FOR_BAND = 3  # at two seeds the band is 13 standard errors wide and hides all else


@register_panel("Learning curves", label="Curves")
def curves(data: ReportData) -> list[Piece] | None:
    """Return a curve per place of the grid, metric and axis; None where nothing was logged."""
    if not len(data.curves):
        return None
    first = (data.metric.on_validation, data.metric.name)
    loader = "/dataloader_idx_"  # which Lightning adds to the name where there are several
    others = lambda name: [not f"{name}{loader}".startswith(f"{each}{loader}") for each in first]  # noqa: E731
    metrics = sorted({*data.curves["metric"]}, key=lambda name: (others(name), not name.startswith("val/"), name))
    apart = len(data.manifest["arms"]) > MOST_TOGETHER  # a plot for each arm in every figure
    unlike = "" if apart else _unlike_times(data)
    axes = [axis for axis in AXES if data.curves[axis].notna().any() and not (axis == "seconds" and unlike)]
    axes = axes[:1] if apart else axes
    if apart or len(metrics) * len(axes) * len(data.points) > MOST_CURVES:
        metrics = [name for name in metrics if name in (metrics[0], "val/loss")]
    drawn = [
        (json.dumps([point_label(place), name, axis]), drawing)
        for place in data.points
        for name in metrics
        for axis in axes
        if (drawing := _curve(data, place, name, axis, name == metrics[0])) is not None
    ]
    if not drawn:
        return None
    words = AXIS_WORDS | {"step": data.manifest.get("counted", "steps").rpartition(" ")[2]}
    choices = [
        ("point", "at", [(point_label(place), point_label(place) or "all") for place in data.points]),
        ("metric", "shown", [(name, Metric(name).words) for name in metrics]),
        ("axis", "by", [(axis, words[axis]) for axis in axes]),
    ]
    arms = [{"name": arm, "color": data.colors[arm]} for arm in data.manifest["arms"]]
    shown = [(choice, drawing, plot_share(drawing)) for choice, drawing in drawn]
    markup = render("curves.html.j2", curves=shown, choices=choices, arms=arms)
    return [Html(markup, drawings=[drawing for _, drawing in drawn]), note(_how(data) + unlike)]


def _unlike_times(data: ReportData) -> str:
    """Return why time says nothing of the arms: it differs more between runs of an arm, which do the same; or nothing.

    Where the arms take equally long, it orders them as their steps do.
    """
    place = [*data.manifest["grid"], "learning_rate"]
    timed = data.curves[data.curves["chosen"] & (data.curves["step"] > 0) & (data.curves["seconds"] > 0)]
    last = timed.sort_values("step").groupby(["arm", *place, "seed"], dropna=False).last()
    pace = (last["seconds"] / last["step"]).groupby(["arm", *place], dropna=False)
    means = pace.mean().groupby(place[:-1] or (lambda _: 0))
    within, between = (pace.max() / pace.min()).max(), (means.max() / means.min()).max()
    if not within > between > EQUALLY_LONG:  # nor where no time is known
        return ""
    return (
        f" No curve is drawn over time: the seconds per step of arms differ up to {between:.2f} times, those of runs "
        f"of one arm up to {within:.2f} times. So an arm may seem faster for what else the machine did."
    )


def _curve(data: ReportData, place: Point, name: str, axis: str, headline: bool) -> Drawing | None:
    table = data.curves
    complete = {(run.arm, run.seed) for run in data.runs if run.result is not None and run.point == place}
    shown = comparable(chosen_at(table, place), complete)
    by_arm = curves_by_seed(shown, name, axis)
    if not by_arm:
        return None
    ordered = {arm: by_arm[arm] for arm in data.manifest["arms"] if arm in by_arm}
    metric = Metric(name, data.manifest["mode"])
    over = data.manifest.get("counted", axis) if axis == "step" else axis
    figure = curve_figure(ordered, data.styles, metric, over, data.manifest["baseline"])
    at = f" at {data.place_text(place)}" if data.place_text(place) else ""
    plain = name.replace("/", "_")
    alone = [each.replace("/", "_") for each in set(table["metric"])].count(plain) == 1
    file = data.place_name(f"curves_{plain if alone else name}_by_{axis}", place)
    save = headline or (name == "val/loss" and axis == "step")
    return Drawing(figure, file, f"Learning curves: {metric.label} over {AXES.get(over, over)}{at}", save)


def _how(data: ReportData) -> str:
    few = " With one or two seeds there is no band; thin lines are seeds." if len(data.manifest["seeds"]) < 3 else ""
    lost = (
        " A mean ends where one of its seeds diverges, at a cross; thin lines are the seeds of such an arm."
        if any(arm.diverged for found in data.places for arm in found.arms)
        else ""
    )
    running = (
        " An arm without a complete run is drawn as far as its runs have come."
        if any(run.result is None for run in data.runs)
        else ""
    )
    return (
        "Lines are means over the complete runs of an arm, bands the pointwise 95 % t interval of that mean (not of a "
        "difference: pairing makes differences narrower than bands suggest). Bands and seeds are cut where they would "
        f"make a plot more than three times as high as its means.{few}{lost}{running}"
    )


def curve_figure(
    curves: Mapping[str, Mapping[int, Curve]],
    styles: Mapping[str, Style],
    metric: Metric,
    axis_name: str,
    baseline: str,
) -> Figure:
    """Draw the mean over seeds of every arm, with its pointwise 95 % t interval as a band.

    Up to ``MOST_TOGETHER`` arms share one plot; beyond, each has a small one beside the baseline, in grey, where that
    has a curve.
    """
    with figure_settings():
        if len(curves) > MOST_TOGETHER and baseline in curves:
            return _apart(curves, styles, metric, axis_name, baseline)
        figure = new_figure(6.6, 3.5)
        axis = figure.subplots()
        drawn = {arm: _draw(axis, of_arm, styles[arm], metric) for arm, of_arm in curves.items()}
        axis.set_xlabel(AXES.get(axis_name, axis_name))
        axis.set_title(metric.label)
        _limit(axis, drawn)
        ends, names = {arm: each.end for arm, each in drawn.items()}, {arm: d.name(arm) for arm, d in drawn.items()}
        label_ends(axis, ends, styles, names)
    return figure


def _apart(
    curves: Mapping[str, Mapping[int, Curve]],
    styles: Mapping[str, Style],
    metric: Metric,
    axis_name: str,
    baseline: str,
) -> Figure:
    from matplotlib.textpath import TextPath

    others = [arm for arm in curves if arm != baseline]
    heads = [arm + " (9 of 9 diverged)" * any(map(_diverged, curves[arm].values())) for arm in others]
    drawn_as = {"size": FONT + 0.5, "prop": {"weight": "bold"}}
    widest = max(TextPath((0, 0), head, **drawn_as).get_extents().width for head in heads)  # in points
    columns = max(1, min(COLUMNS, int(5.5 * 72 / widest)))  # as the names leave room
    rows = math.ceil(len(others) / columns)
    # By hand: laying out forty plots takes longer than drawing them.
    tall = 0.95 + 1.4 * rows
    figure = new_figure(6.6, tall, layout=None)
    box = {"left": 0.075, "right": 0.985, "bottom": 0.5 / tall, "top": 1 - 0.5 / tall, "wspace": 0.1, "hspace": 0.32}
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False, gridspec_kw=box)
    drawn = {}
    for axis, arm in zip(axes.flat, others, strict=False):
        look = {"width": 1.2, "most": MOST_POINTS_APART}
        drawn[baseline] = _draw(axis, curves[baseline], styles[baseline], metric, **look)
        drawn[arm] = _draw(axis, curves[arm], styles[arm], metric, **look)
        axis.set_title(drawn[arm].name(arm), color=styles[arm].paper, fontweight="bold")
    _limit(axes[0, 0], drawn)
    for place, axis in enumerate(axes.flat):
        axis.set_visible(place < len(others))
        axis.tick_params(labelbottom=place + columns >= len(others))  # the lowest plot of each column
    label = {"color": INK, "fontsize": "medium"}
    figure.suptitle(
        f"{metric.label}, beside {baseline} in grey", x=0.03, y=1 - 0.06 / tall, ha="left", va="top", **label
    )
    figure.supxlabel(AXES.get(axis_name, axis_name), y=0.06 / tall, color=FAINT, fontsize="medium")
    return figure


class _Drawn(NamedTuple):
    """One arm on an axis."""

    means: np.ndarray  # at each evaluation
    # the values that the axis has to hold: the means, or of an arm with diverged seeds those of its others
    steady: np.ndarray
    reached: tuple[float, ...]  # by its band, or without one by its seeds
    diverged: int  # how many of its seeds
    seeds: int  # how many there are

    @property
    def end(self) -> float:
        """Where the line of the mean ends; NaN where there is none."""
        known = self.means[np.isfinite(self.means)]
        return float(known[-1]) if len(known) else math.nan

    def name(self, arm: str) -> str:
        """Return the arm's name, with the number of its seeds that diverged."""
        return f"{arm} ({self.diverged} of {self.seeds} diverged)" if self.diverged else arm


def _diverged(curve: Curve) -> bool:
    return not math.isfinite(curve[-1][1])


def _draw(
    axis: Axes, of_arm: Mapping[int, Curve], style: Style, metric: Metric, width: float = 1.7, most: int = MOST_POINTS
) -> _Drawn:
    """Draw the mean of an arm, up to where a seed has diverged; what the others do after that, thin lines show."""
    diverged = sum(map(_diverged, of_arm.values()))
    places, means, low, high = mean_curve(list(of_arm.values()), most)
    means, low, high = (_finite(metric.factor * values) for values in (means, low, high))
    low, high = np.clip((low, high), *metric.ends)  # of an accuracy, 0 to 100 %
    banded = len(of_arm) >= FEWEST_FOR_BAND
    if banded:
        axis.fill_between(places, low, high, color=style.paper, alpha=0.14, linewidth=0)
    if len(of_arm) > 1 and (diverged or not banded):
        for curve in of_arm.values():
            x, y = np.array(thinned(curve)).T
            axis.plot(x, _finite(metric.factor * y), color=style.paper, alpha=0.35, linewidth=0.7)
            if not math.isfinite(y[-1]):  # a cross where the seed was last seen
                last = np.flatnonzero(np.isfinite(y))[-1:]
                axis.plot(x[last], metric.factor * y[last], "x", color=style.paper, markersize=4)
    axis.grid(axis="x", visible=False)
    marker = "o" if len(places) == 1 else None
    axis.plot(places, means, color=style.paper, linewidth=width, linestyle=style.dash, marker=marker)
    ends = [*low, *high] if banded else [metric.factor * value for curve in of_arm.values() for _, value in curve]
    ends = [value for value in ends if math.isfinite(value)]
    others = [curve for curve in of_arm.values() if not _diverged(curve)]
    steady = metric.factor * np.array([value for curve in others for _, value in curve]) if diverged else means
    return _Drawn(means, steady, (min(ends), max(ends)) if ends and not diverged else (), diverged, len(of_arm))


def _limit(axis: Axes, drawn: Mapping[str, _Drawn]) -> None:
    """Set the limits by the means of what did not diverge; wide bands of few seeds are cut rather than flatten them."""
    # A run on its way to infinity would flatten all others.
    values = np.concatenate([found.steady for found in drawn.values()])
    values = values[np.isfinite(values)] if np.isfinite(values).any() else np.zeros(1)
    reached = [value for found in drawn.values() for value in found.reached]
    lowest, highest = float(values.min()), float(values.max())
    margin, room = (share * (highest - lowest or 1) for share in (0.03, 1.0))
    axis.margins(x=0)
    axis.set_xlim(left=0)
    axis.set_ylim(
        max(min([lowest, *reached]), lowest - room) - margin, min(max([highest, *reached]), highest + room) + margin
    )
    axis.xaxis.get_major_locator().set_params(integer=axis.get_xlim()[1] > 5)  # of steps, but seconds may be parts
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.12g}")


def comparable(curves: pd.DataFrame, complete: Collection[tuple[str, int]]) -> pd.DataFrame:
    """Keep what a mean over seeds may stand on: an arm's complete runs where it has any, and steps they all logged."""
    import pandas as pd

    finished = pd.Series(pd.MultiIndex.from_frame(curves[["arm", "seed"]]).isin(list(complete)), index=curves.index)
    kept = curves[finished | ~finished.groupby(curves["arm"]).transform("any")] if len(curves) else curves
    seeds = kept.groupby(["arm", "metric"])["seed"].transform("nunique")
    return kept[kept.groupby(["arm", "metric", "step"])["seed"].transform("nunique") == seeds]


def mean_curve(
    curves: Sequence[Curve], most: int = MOST_POINTS
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return places, mean, and lower and upper end of the interval at every evaluation that all curves have.

    They are NaN from where a curve is no number: a mean of those that are left would be the mean of the lucky ones.
    """
    from scipy import stats

    length = min(len(curve) for curve in curves)
    kept = [thinned(curve[:length], most) for curve in curves]
    values = np.array(kept)  # (seeds, evaluations, 2)
    logged = np.where(np.isfinite(values[:, :, 1]).all(axis=0), values[:, :, 1], np.nan)
    mean = logged.mean(axis=0)
    if len(logged) == 1:
        return values[:, :, 0].mean(axis=0), mean, mean - np.inf, mean + np.inf
    # Student's t as :func:`~comparison.results.paired.t_interval` has it, at all evaluations at once.
    with np.errstate(over="ignore"):  # of values near the largest there is no band
        half = stats.t.ppf(0.975, len(logged) - 1) * logged.std(axis=0, ddof=1) / math.sqrt(len(logged))
    return values[:, :, 0].mean(axis=0), mean, mean - half, mean + half


def _finite(values: np.ndarray) -> np.ndarray:
    """Return values with NaN in place of infinities, which an axis cannot hold."""
    return np.where(np.isfinite(values), values, np.nan)


def thinned(curve: Curve, most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """Return at most so many points of a curve, the first and the last among them."""
    places = np.unique(np.linspace(0, len(curve) - 1, min(len(curve), most)).round().astype(int))
    return [curve[place] for place in places]


@register_panel("Steps to the baseline’s result", label="Steps")
def steps(data: ReportData) -> list[Piece]:
    """Return a table per place of the grid, and how it is made."""
    shown: list[Piece] = []
    for found in data.places:
        if found.target is None:
            continue
        if found.at_once:
            none = (
                f"Every run is at the target, {target_text(found, decimals(found))}, the mean of {found.baseline}’s "
                "final validation values, at its first evaluation. So the steps to it say nothing and are left out."
            )
            shown += [*heading(data.place_text(found.point)), note(none)]
            continue
        seeds = sorted({seed for arm in found.arms if arm.reach for seed in arm.reach.steps})
        rows = [
            [Cell(arm.name, arm=arm.name), *(Cell(_steps(arm, seed)) for seed in seeds)]
            for arm in found.arms
            if arm.reach
        ]
        columns = ["arm", *(f"seed {seed}" for seed in seeds)]
        shown += [
            *heading(data.place_text(found.point)),
            table(data, Table(columns, rows)),
            note(_steps_how(found, counted=bool(data.successes))),
        ]
    return shown


def _steps_how(found: PlaceResult, counted: bool) -> str:
    baseline = next((arm for arm in found.arms if arm.name == found.baseline), None)
    split = (
        ": it is taken on the validation split, never on test" if found.metric.on_validation.startswith("val/") else ""
    )
    kept = ", of its seeds that did not diverge" if baseline is not None and baseline.diverged else ""
    above = (
        " The speed-up in the table of the result is the baseline’s steps divided by the arm’s, paired within a seed,"
        " as a geometric mean with a t interval of the logarithms. Its target is a different one: the worst final value"
        " of both arms, which all of their runs reach. With a target that only some runs reach, luck looks like speed."
        " Two seeds give no interval. The range beside the steps there goes from the fewest to the most over the seeds;"
        " it is not a confidence interval."
    )
    return (
        f"The target, {target_text(found, decimals(found))}, is the mean of {found.baseline}’s final "
        f"{Metric(found.metric.on_validation).words}{kept}{split}. Curves are linear between evaluations."
        f"{'' if counted else above}"  # a table of counted runs has neither
    )


def _steps(arm: ArmResult, seed: int) -> str:
    if arm.reach is None or seed not in arm.reach.steps:
        return ""
    if seed in arm.diverged:
        return "diverged"
    found = arm.reach.steps[seed]
    return "not reached" if found is None else "≤ " * bool(found and seed in arm.reach.first) + steps_text(found)

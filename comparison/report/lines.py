"""The figures of numbers: learning curves, and paired differences with every seed as a dot."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from comparison.report.theme import FAINT, INK, Style, drawing, label_ends, new_figure
from comparison.results.effects import Effects, Metric
from comparison.results.paired import Interval, t_interval
from comparison.results.tables import decimals, interval_text
from comparison.results.targets import Curve

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = {"step": "optimizer steps", "samples": "training samples seen", "seconds": "training time (seconds)"}
MOST_POINTS = 300
MOST_TOGETHER = 8
COLUMNS = 4
FEWEST_FOR_BAND = 3  # at two seeds the band is 13 standard errors wide and hides all else


def curve_figure(
    curves: Mapping[str, Mapping[int, Curve]], looks: Mapping[str, Style], metric: Metric, axis_name: str, baseline: str
) -> Figure:
    """Draw the mean over seeds of every arm, with its pointwise 95 % t interval as a band.

    Up to ``MOST_TOGETHER`` arms share one plot; beyond, each has a small one beside the baseline, in grey, where that
    has a curve.

    Args:
        curves: arm → seed → [(place on the axis, value)].
        looks: style of every arm.
        metric: what the values are.
        axis_name: one of ``AXES``.
        baseline: the arm that the small plots repeat.
    """
    draw = _together if len(curves) <= MOST_TOGETHER or baseline not in curves else _apart
    with drawing():
        return draw(curves, looks, metric, axis_name, baseline)


def _together(
    curves: Mapping[str, Mapping[int, Curve]], looks: Mapping[str, Style], metric: Metric, axis_name: str, _: str
) -> Figure:
    figure = new_figure(6.6, 3.5)
    axis = figure.subplots()
    drawn = {arm: _draw(axis, of_arm, looks[arm], metric) for arm, of_arm in curves.items()}
    axis.set_xlabel(AXES[axis_name])
    axis.set_title(metric.label)
    _limit(axis, drawn)
    figure.canvas.draw()  # the layout is known only now, and the labels' distance with it
    label_ends(axis, {arm: float(found.means[-1]) for arm, found in drawn.items()}, looks)
    return figure


def _apart(
    curves: Mapping[str, Mapping[int, Curve]], looks: Mapping[str, Style], metric: Metric, axis_name: str, baseline: str
) -> Figure:
    others = [arm for arm in curves if arm != baseline]
    rows = math.ceil(len(others) / COLUMNS)
    figure = new_figure(6.6, 0.6 + 1.45 * rows)
    axes = figure.subplots(rows, COLUMNS, sharex=True, sharey=True, squeeze=False)
    drawn = {}
    for axis, arm in zip(axes.flat, others, strict=False):
        drawn[baseline] = _draw(axis, curves[baseline], looks[baseline], metric, width=1.2)
        drawn[arm] = _draw(axis, curves[arm], looks[arm], metric, width=1.2)
        axis.set_title(arm, color=looks[arm].paper, fontweight="bold")
    _limit(axes[0, 0], drawn)
    for place, axis in enumerate(axes.flat):
        axis.set_visible(place < len(others))
        axis.tick_params(labelbottom=place + COLUMNS >= len(others))  # the lowest plot of each column
    figure.suptitle(f"{metric.label}, beside {baseline} in grey", x=0.03, ha="left", color=INK, fontsize="medium")
    figure.supxlabel(AXES[axis_name], color=FAINT, fontsize="medium")
    return figure


class _Drawn(NamedTuple):
    """One arm on an axis: the mean at each evaluation, and what its band reaches."""

    means: np.ndarray
    reached: tuple[float, ...]


def _draw(axis: Axes, of_arm: Mapping[int, Curve], look: Style, metric: Metric, width: float = 1.7) -> _Drawn:
    places, means, low, high = mean_curve(list(of_arm.values()))
    means, low, high = (metric.factor * values for values in (means, low, high))
    banded = len(of_arm) >= FEWEST_FOR_BAND
    if banded:
        axis.fill_between(places, low, high, color=look.paper, alpha=0.14, linewidth=0)
    elif len(of_arm) > 1:
        for curve in of_arm.values():
            x, y = np.array(thinned(curve)).T
            axis.plot(x, metric.factor * y, color=look.paper, alpha=0.35, linewidth=0.7)
    axis.grid(axis="x", visible=False)
    marker = "o" if len(places) == 1 else None
    axis.plot(places, means, color=look.paper, linewidth=width, linestyle=look.dash, marker=marker)
    return _Drawn(means, (float(low.min()), float(high.max())) if banded else ())


def _limit(axis: Axes, drawn: Mapping[str, _Drawn]) -> None:
    """Set the limits by the means; wide bands of few seeds are cut rather than let them flatten the curves."""
    values = np.concatenate([found.means for found in drawn.values()])
    reached = [value for found in drawn.values() for value in found.reached]
    lowest, highest = float(values.min()), float(values.max())
    margin, room = (share * (highest - lowest or 1) for share in (0.03, 0.2))
    axis.margins(x=0)
    axis.set_xlim(left=0)
    axis.set_ylim(
        max(min([lowest, *reached]), lowest - room) - margin, min(max([highest, *reached]), highest + room) + margin
    )
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def comparable(curves: pd.DataFrame, complete: Collection[tuple[str, int]]) -> pd.DataFrame:
    """Keep what a mean over seeds may stand on: an arm's complete runs where it has any, and steps they all logged.

    Args:
        curves: as ``load_curves`` gives them, at one place of the grid.
        complete: arm and seed of the complete runs.
    """
    finished = curves[["arm", "seed"]].apply(lambda row: (row["arm"], row["seed"]) in complete, axis=1)
    kept = curves[finished | ~finished.groupby(curves["arm"]).transform("any")] if len(curves) else curves
    seeds = kept.groupby(["arm", "metric"])["seed"].transform("nunique")
    return kept[kept.groupby(["arm", "metric", "step"])["seed"].transform("nunique") == seeds]


def mean_curve(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return places, mean, and lower and upper end of the interval at every evaluation that all curves have."""
    length = min(len(curve) for curve in curves)
    kept = [thinned(curve[:length]) for curve in curves]
    values = np.array(kept)  # (seeds, evaluations, 2)
    intervals = [t_interval(list(at_once)) for at_once in values[:, :, 1].T]
    ends = np.array([[i.mean, i.low, i.high] for i in intervals])
    return values[:, :, 0].mean(axis=0), *ends.T


def thinned(curve: Curve) -> list[tuple[float, float]]:
    """Return at most ``MOST_POINTS`` points of a curve, the first and the last among them."""
    places = np.unique(np.linspace(0, len(curve) - 1, min(len(curve), MOST_POINTS)).round().astype(int))
    return [curve[place] for place in places]


def difference_figure(found: Effects, looks: Mapping[str, Style], to: str) -> Figure | None:
    """Draw paired differences: a dot per seed, the mean and its 95 % t interval.

    Args:
        found: the effects at one place of the grid.
        looks: style of every arm.
        to: ``"baseline"`` or ``"control"``.

    Returns:
        None where nothing is paired.
    """
    shown = [(arm.name, effect) for arm in found.arms if (effect := getattr(arm, to)) is not None]
    if not shown:
        return None
    digits = decimals(found)
    with drawing():
        figure = new_figure(4.5, 0.36 * len(shown) + 0.75)
        axis = figure.subplots()
        farthest = max(abs(value) for _, effect in shown for value in effect.by_seed.values())
        finite = [max(abs(e.interval.low), abs(e.interval.high)) for _, e in shown if e.interval.samples > 1]
        reach = 1.12 * min(max([farthest, *finite]), 2.2 * farthest) or 1.0
        lowest = min(0.0, *(max(-reach, _low(effect.interval)) for _, effect in shown))
        highest = max(0.0, *(min(reach, _high(effect.interval)) for _, effect in shown))
        margin = 0.06 * (highest - lowest) or 1.0
        axis.set_xlim(lowest - margin, highest + margin)
        axis.axvline(0, color=FAINT, linewidth=0.9)
        for row, (arm, effect) in enumerate(shown):
            _row(axis, row, looks[arm].paper, effect.interval, list(effect.by_seed.values()))
            text = interval_text(effect.interval, digits, signed=True)
            kind = found.metric.is_gain(effect.interval)
            at = {"xycoords": ("axes fraction", "data"), "va": "center", "annotation_clip": False}
            axis.annotate(text, (1.03, row), color=FAINT if kind is None else INK, **at)
        names = [arm if to == "baseline" else f"{arm} − {effect.reference}" for arm, effect in shown]
        axis.set_yticks(range(len(shown)), names)
        for label, (arm, _) in zip(axis.get_yticklabels(), shown, strict=True):
            label.set_color(looks[arm].paper)
            label.set_fontweight("bold")
        axis.set_ylim(len(shown) - 0.45, -0.55)
        axis.grid(axis="y", visible=False)
        axis.tick_params(axis="y", pad=7)
        axis.spines["left"].set_visible(False)
        unit = f" ({found.metric.unit})" if found.metric.unit else ""
        better = "" if found.metric.mode == "max" else "; less is better"
        axis.set_xlabel(f"difference in {found.metric.words}{unit}{better}")
        axis.set_title(
            f"Difference to {found.baseline}" if to == "baseline" else "Difference to the same-positions control"
        )
        axis.xaxis.set_major_formatter(lambda value, _: _tick(value))
    return figure


def _row(axis: Axes, row: int, color: str, interval: Interval, values: Sequence[float]) -> None:
    left, right = axis.get_xlim()
    axis.plot(values, [row + 0.2] * len(values), "o", color=color, markersize=3.4, alpha=0.5, markeredgewidth=0)
    if not math.isinf(interval.half_width):
        low, high = max(interval.low, left), min(interval.high, right)
        axis.plot([low, high], [row, row], color=color, linewidth=2.2, alpha=0.9)
        for end, shown, mark in ((interval.low, low, "<"), (interval.high, high, ">")):
            if end != shown:  # the interval goes on beyond the picture
                axis.plot([shown], [row], mark, color=color, markersize=5, clip_on=False)
    axis.plot([interval.mean], [row], "D", color=color, markersize=4.6, markeredgecolor="white", markeredgewidth=0.6)


def _tick(value: float) -> str:
    text = f"{value:+g}" if abs(value) > 1e-9 else "0"
    return text.replace("-", "−")


def _low(interval: Interval) -> float:
    return interval.mean if math.isinf(interval.low) else interval.low


def _high(interval: Interval) -> float:
    return interval.mean if math.isinf(interval.high) else interval.high

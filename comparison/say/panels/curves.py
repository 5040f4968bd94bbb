"""Learning curves over optimizer steps, and how soon arms reach the baseline's result."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from comparison.runs.folder import Point
from comparison.runs.metric import Metric
from comparison.runs.records import chosen_at
from comparison.say.data import ReportData
from comparison.say.headline import speed_table
from comparison.say.registry import Piece, explanation, heading, register_panel
from comparison.say.theme import Drawing, Style, figure_settings, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEWEST_FOR_BAND = 3  # at two seeds the band is 13 standard errors wide and hides all else
HOW = (
    "Lines: means over an arm’s complete runs, at the steps that all logged, up to where one diverged. Bands: 95 % t "
    "intervals of the mean, not of a difference. Thin lines: seeds, where there are two or one diverged."
)
SPEED = (
    "Steps: to the baseline’s mean final validation value; ≤: there at the first evaluation. Speed-up: the baseline’s "
    "steps over the arm’s, paired, to the worst final value of both; geometric mean, t interval of the logarithms, "
    "adjusted among all speed-ups."
)


@register_panel("Learning curves")
def curves(data: ReportData) -> list[Piece] | None:
    """Return the curves of the compared metric and of the validation loss; None where nothing was logged."""
    shown: list[Piece] = []
    for place in data.points:
        drawn = [drawing for name in _metrics(data) for drawing in _drawings(data, place, name)]
        shown += [*heading(data.place_text(place)), *drawn] if drawn else []
    if not shown:
        return None
    shown.append(explanation(HOW))
    speeds: list[Piece] = []
    for found in [] if data.successes else data.places:
        table = speed_table(found)
        if table.rows:
            speeds += [*heading(data.place_text(found.point)), table]
    return [*shown, *speeds, explanation(SPEED)] if speeds else shown


def _metrics(data: ReportData) -> list[str]:
    """Return the metrics that are drawn: the compared one, where there is one on validation, and the loss."""
    logged = set(data.curves["metric"])
    compared = data.metric.on_validation if data.metric.on_validation in logged else data.metric.name
    return list(dict.fromkeys([compared, "val/loss"]))


def _drawings(data: ReportData, place: Point, name: str) -> list[Drawing]:
    """Return the curves of a metric at a place of the grid, of complete runs; empty without any."""
    table = chosen_at(data.curves, place)
    complete = {(run.arm, run.seed) for run in data.runs if run.result is not None and run.point == place}
    table = table[table["metric"] == name]
    table = table[[run in complete for run in zip(table["arm"], table["seed"], strict=True)]]
    if table.empty:
        return []
    counted = data.manifest.counted
    metric = Metric(name, data.manifest.mode)
    figure = curve_figure(table, data.styles, metric, counted)
    file = data.place_name(f"curves_{name.replace('/', '_')}_by_step", place)
    return [Drawing(figure, file, f"Learning curves: {metric.label} over {counted}")]


def curve_figure(table: pd.DataFrame, styles: dict[str, Style], metric: Metric, counted: str) -> Figure:
    """Draw the mean over seeds of every arm, with its pointwise 95 % t interval as a band.

    Args:
        table: a row per logged value, with the columns ``arm``, ``seed``, ``step`` and ``value``.
        styles: arm → how it is drawn, in the order of the legend.
        metric: what is logged.
        counted: what steps are.
    """
    with figure_settings():
        figure = new_figure(6.6, 3.2)
        axis = figure.subplots()
        steady = []
        for arm, style in styles.items():
            of_arm = table[table["arm"] == arm]
            if not of_arm.empty:
                steady.append(_draw(axis, arm, metric.factor * by_step(of_arm), style, metric.ends))
        known = np.concatenate(steady)
        if len(known):  # a run on its way to infinity would flatten all others
            margin = 0.05 * (known.max() - known.min() or 1.0)
            axis.set_ylim(known.min() - margin, known.max() + margin)
        axis.set_xlim(left=0)
        axis.set_xlabel(counted)
        axis.set_title(metric.label)
        axis.grid(axis="x", visible=False)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.12g}")
        figure.legend(loc="outside right upper")
    return figure


def _draw(axis: Axes, arm: str, seeds: pd.DataFrame, style: Style, limits: tuple[float, float]) -> np.ndarray:
    """Draw an arm; return the values of its seeds that did not diverge, which the axis has to hold."""
    color = style.paper
    diverged = np.isinf(seeds.ffill().iloc[-1])
    mean, half = mean_curve(seeds)
    if seeds.shape[1] >= FEWEST_FOR_BAND:
        low, high = np.clip((mean - half, mean + half), *limits)
        axis.fill_between(mean.index, low, high, color=color, alpha=0.14, linewidth=0)
    elif seeds.shape[1] > 1 or diverged.any():
        axis.plot(_finite(seeds), color=color, alpha=0.35, linewidth=0.7)
    name = f"{arm} ({diverged.sum()} of {len(diverged)} diverged)" if diverged.any() else arm
    marker = "o" if len(mean) == 1 else None
    axis.plot(mean, color=color, linestyle=style.dash, linewidth=1.6, marker=marker, label=name)
    steady = seeds.loc[:, ~diverged].to_numpy()
    return steady[np.isfinite(steady)]


def by_step(of_arm: pd.DataFrame) -> pd.DataFrame:
    """Return an arm's logged values, a row per step and a column per seed: NaN if not logged, infinite if no number."""
    finite = np.isfinite(of_arm["value"].astype(float))
    values = of_arm.assign(value=of_arm["value"].where(finite, np.inf))
    return values.pivot_table(index="step", columns="seed", values="value", aggfunc="last")


def mean_curve(seeds: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Return the mean of an arm's runs at the steps that all of them logged, and the half width of its 95 % t interval.

    Both are NaN from where a run is no number: a mean of those that are left would be the mean of the lucky ones.
    """
    from scipy import stats

    shared = _finite(seeds.dropna())
    count = shared.shape[1]
    half = stats.t.ppf(0.975, count - 1) * shared.std(axis=1) / math.sqrt(count)
    return shared.mean(axis=1, skipna=False), half


def _finite(seeds: pd.DataFrame) -> pd.DataFrame:
    """Return values with NaN in place of infinities, which an axis cannot hold."""
    return seeds.replace(np.inf, np.nan)

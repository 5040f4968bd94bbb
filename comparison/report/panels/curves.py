"""Learning curves over optimizer steps, and how soon arms reach the baseline's result."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from comparison.report.data import ReportData
from comparison.report.registry import Piece, explanation, heading, register_panel
from comparison.report.theme import Drawing, Style, figure_settings, new_figure
from comparison.results.folder import Point
from comparison.results.headline import speed_table
from comparison.results.metric import Metric
from comparison.results.records import chosen_at

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


class MeanCurve(NamedTuple):
    """The mean of an arm's runs, (evaluations,) each; NaN from where one of them diverged."""

    steps: np.ndarray
    mean: np.ndarray
    half: np.ndarray  # half width of the 95 % t interval; infinite of a single run


@register_panel("Learning curves")
def curves(data: ReportData) -> list[Piece] | None:
    """Return the curves of the compared metric and of the validation loss; None where nothing was logged."""
    shown: list[Piece] = []
    for place in data.points:
        drawings = [_drawing(data, place, name) for name in _metrics(data)]
        drawn = [drawing for drawing in drawings if drawing is not None]
        shown += [*heading(data.place_text(place)), *drawn] if drawn else []
    if not shown:
        return None
    shown.append(explanation(HOW))
    tables = [(found, speed_table(found)) for found in data.places if not data.successes]
    for found, table in tables:
        shown += [*heading(data.place_text(found.point)), table] if table.rows else []
    return [*shown, explanation(SPEED)] if any(table.rows for _, table in tables) else shown


def _metrics(data: ReportData) -> list[str]:
    """Return the metrics that are drawn: the compared one, where there is one on validation, and the loss."""
    logged = sorted(data.curves["metric"].unique())
    compared: list[str] = []
    for name in (data.metric.on_validation, data.metric.name):
        # Lightning adds a number to the name where there are several loaders.
        compared = compared or [each for each in logged if each.partition("/dataloader_idx_")[0] == name]
    return list(dict.fromkeys([*compared, "val/loss"]))


def _drawing(data: ReportData, place: Point, name: str) -> Drawing | None:
    table = chosen_at(data.curves, place)
    table = table[table["metric"] == name]
    complete = {(run.arm, run.seed) for run in data.runs if run.result is not None and run.point == place}
    finished = pd.MultiIndex.from_frame(table[["arm", "seed"]]).isin(list(complete)) if len(table) else []
    table = table[finished]
    if not len(table):
        return None
    counted = data.manifest.get("counted", "optimizer steps")
    metric = Metric(name, data.manifest["mode"])
    file = data.place_name(f"curves_{name.replace('/', '_')}_by_step", place)
    figure = curve_figure(table, data.styles, metric, counted)
    return Drawing(figure, file, f"Learning curves: {metric.label} over {counted}")


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
            if len(of_arm):
                steady.append(_draw(axis, arm, of_arm, style, metric))
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


def _draw(axis: Axes, arm: str, of_arm: pd.DataFrame, style: Style, metric: Metric) -> np.ndarray:
    """Draw an arm; return the values of its seeds that did not diverge, which the axis has to hold."""
    color, steady, diverged = style.paper, [], 0
    seeds = [rows.sort_values("step") for _, rows in of_arm.groupby("seed")]
    for rows in seeds:
        values = metric.factor * rows["value"].to_numpy(float)
        if np.isfinite(values[-1]):
            steady.append(values[np.isfinite(values)])
        else:
            diverged += 1
    found = mean_curve(of_arm)
    mean, half = metric.factor * found.mean, metric.factor * found.half
    if len(seeds) >= FEWEST_FOR_BAND:
        low, high = np.clip((mean - half, mean + half), *metric.ends)
        axis.fill_between(found.steps, low, high, color=color, alpha=0.14, linewidth=0)
    if diverged or 1 < len(seeds) < FEWEST_FOR_BAND:
        for rows in seeds:
            axis.plot(rows["step"], _finite(metric.factor * rows["value"]), color=color, alpha=0.35, linewidth=0.7)
    name = f"{arm} ({diverged} of {len(seeds)} diverged)" if diverged else arm
    marker = "o" if len(mean) == 1 else None
    axis.plot(found.steps, mean, color=color, linestyle=style.dash, linewidth=1.6, marker=marker, label=name)
    return np.concatenate([*steady, np.zeros(0)])


def mean_curve(of_arm: pd.DataFrame) -> MeanCurve:
    """Return the mean of an arm's runs at the steps that all of them logged.

    It is NaN from where a run is no number: a mean of those that are left would be the mean of the lucky ones.
    """
    from scipy import stats

    seeds = of_arm["seed"].nunique()
    by_step = of_arm.assign(value=_finite(of_arm["value"])).groupby("step")["value"]
    table = by_step.agg(["size", "count", "mean", "std"])
    table = table[table["size"] == seeds]
    mean = table["mean"].where(table["count"] == seeds).to_numpy()
    if seeds == 1:
        return MeanCurve(table.index.to_numpy(), mean, np.full(len(mean), np.inf))
    half = stats.t.ppf(0.975, seeds - 1) * table["std"].to_numpy() / np.sqrt(seeds)
    return MeanCurve(table.index.to_numpy(), mean, half)


def _finite(values: pd.Series) -> np.ndarray:
    """Return values with NaN in place of infinities, which an axis cannot hold."""
    return np.where(np.isfinite(values.astype(float)), values, np.nan)

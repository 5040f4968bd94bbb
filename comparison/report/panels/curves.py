"""Learning curves: one is shown, others are chosen."""

from __future__ import annotations

import json

from comparison.report.data import ReportData
from comparison.report.drawing import Drawing, plot_share
from comparison.report.lines import AXES, MOST_TOGETHER, comparable, curve_figure
from comparison.report.registry import Html, Piece, note, register_panel
from comparison.report.rendering import render
from comparison.results.effects import curves_by_seed
from comparison.results.metric import Metric
from comparison.results.records import at_point, point_label
from comparison.results.run_record import Point

MOST_CURVES = 48  # on the page: beyond it, and with a plot for each arm, only the headline metric and the loss
AXIS_WORDS = {"step": "steps", "samples": "samples", "seconds": "time"}


@register_panel("Learning curves", label="Curves")
def curves(data: ReportData) -> list[Piece] | None:
    """Return a curve per place of the grid, metric and axis; None where nothing was logged."""
    if not len(data.curves):
        return None
    metrics = _metrics(data)
    axes = [axis for axis in AXES if data.curves[axis].notna().any()]
    apart = len(data.manifest["arms"]) > MOST_TOGETHER  # a plot for each arm in every figure
    axes = axes[:1] if apart else axes
    if apart or len(metrics) * len(axes) * len(data.points) > MOST_CURVES:
        metrics = [name for name in metrics if name in (data.metric.on_validation, "val/loss")] or metrics[:1]
    drawn = [
        (json.dumps([point_label(place), name, axis]), drawing)
        for place in data.points
        for name in metrics
        for axis in axes
        if (drawing := _curve(data, place, name, axis)) is not None
    ]
    if not drawn:
        return None
    choices = [
        ("point", "at", [(point_label(place), point_label(place) or "all") for place in data.points]),
        ("metric", "shown", [(name, name.replace("/", " ").replace("_", " ")) for name in metrics]),
        ("axis", "by", [(axis, AXIS_WORDS[axis]) for axis in axes]),
    ]
    arms = [{"name": arm, "color": data.colors[arm]} for arm in data.manifest["arms"]]
    shown = [(choice, drawing, plot_share(drawing)) for choice, drawing in drawn]
    markup = render("curves.html.j2", curves=shown, choices=choices, arms=arms)
    return [Html(markup, drawings=[drawing for _, drawing in drawn]), note(_how(data))]


def _curve(data: ReportData, place: Point, name: str, axis: str) -> Drawing | None:
    table = data.curves
    complete = {(run.arm, run.seed) for run in data.runs if run.result is not None and run.point == place}
    shown = comparable(at_point(table[table["chosen"].astype(bool)], place), complete)
    by_arm = curves_by_seed(shown, name, axis)
    if not by_arm:
        return None
    ordered = {arm: by_arm[arm] for arm in data.manifest["arms"] if arm in by_arm}
    metric = Metric(name, data.manifest["mode"])
    figure = curve_figure(ordered, data.styles, metric, axis, data.manifest["baseline"])
    at = f" at {data.place_text(place)}" if data.place_text(place) else ""
    plain = name.replace("/", "_")
    alone = [each.replace("/", "_") for each in set(table["metric"])].count(plain) == 1
    file = data.place_name(f"curves_{plain if alone else name}_by_{axis}", place)
    save = name == data.metric.on_validation or (name == "val/loss" and axis == "step")
    return Drawing(figure, file, f"Learning curves: {metric.label} over {AXES[axis]}{at}", save)


def _metrics(data: ReportData) -> list[str]:
    """Return the metrics that have curves: the headline's first, validation before training."""
    headline = data.metric.on_validation
    names = sorted(set(data.curves["metric"]))
    return sorted(names, key=lambda name: (name != headline, not name.startswith("val/"), name))


def _how(data: ReportData) -> str:
    few = " With one or two seeds there is no band; thin lines are seeds." if len(data.manifest["seeds"]) < 3 else ""
    lost = (
        " A mean ends where one of its seeds diverges, at a cross; thin lines are the seeds of such an arm."
        if any(arm.diverged for found in data.effects for arm in found.arms)
        else ""
    )
    return (
        "Lines are means over the complete runs of an arm, bands the pointwise 95 % t interval of that mean (not of a "
        f"difference: pairing makes differences narrower than bands suggest).{few}{lost}"
    )

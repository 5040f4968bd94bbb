"""The picture of the demo: learning curves and final accuracy above, attention before and after below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import load_file

from benchmarks.paired_runs import Run, learning_curve
from structured_init.analysis.paired import paired_difference, t_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

COLORS = ("#8a8f98", "#2b8cbe", "#d95f0e", "#31a354", "#756bb1")
TITLES = {"mimetic_host": "mimetic", "kaiming_uniform": "Kaiming uniform"}


def demo_figure(runs: Sequence[Run], accuracy: Mapping[str, Mapping[int, float]]) -> Figure:
    """Draw complete runs of several starts.

    Args:
        runs: complete runs.
        accuracy: final test accuracy in percent by start and seed.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6.6), layout="constrained", facecolor="white")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.15, 1))
    curves, finals = top.subplots(1, 2, width_ratios=(1.6, 1))
    for start, color in zip(accuracy, COLORS, strict=False):
        _curve(curves, [run for run in runs if run.start == start], start, color)
    _label(curves, "Learning curves: every seed, and their mean", "epoch", "validation accuracy %")
    curves.legend(frameon=False, loc="lower right")
    _finals(finals, accuracy)
    first = min(run.seed for run in runs)
    shown = [run for run in runs if run.seed == first]
    maps = [_mean_maps(run) for run in shown]
    bright = float(np.quantile(np.concatenate([m.ravel() for phases in maps for p in phases for m in p]), 0.995))
    for run, phases, panel in zip(shown, maps, bottom.subfigures(1, len(shown), squeeze=False)[0], strict=True):
        _attention(panel, TITLES.get(run.start, run.start), phases, bright)
    return figure


def _curve(axis: Axes, runs: Sequence[Run], start: str, color: str) -> None:
    curves = [learning_curve(run) for run in runs]
    for epochs, values in curves:
        axis.plot(np.add(epochs, 1), np.multiply(values, 100), color=color, alpha=0.3, linewidth=1)
    mean = np.mean([values for _, values in curves], axis=0) * 100
    axis.plot(np.add(curves[0][0], 1), mean, color=color, linewidth=2.4, label=TITLES.get(start, start))


def _finals(axis: Axes, accuracy: Mapping[str, Mapping[int, float]]) -> None:
    """Every seed is a dot; the text is the difference to the first start within a seed, with its t interval."""
    baseline = next(iter(accuracy))
    for row, (start, values) in enumerate(accuracy.items()):
        color = COLORS[row % len(COLORS)]
        axis.plot(list(values.values()), [row] * len(values), "o", color=color, alpha=0.75, markersize=8)
        text = f"{t_interval(list(values.values())).mean:.1f} %"
        if start != baseline:
            difference = paired_difference(values, accuracy[baseline])
            text += f"   {'+' if difference.mean >= 0 else '−'}{str(difference).lstrip('-')}"
        axis.text(0.02, row - 0.22, text, transform=axis.get_yaxis_transform(), color=color, fontsize=10)
    axis.set_yticks(range(len(accuracy)), [TITLES.get(start, start) for start in accuracy])
    axis.set_ylim(len(accuracy) - 0.5, -0.6)
    _label(axis, f"Test: each seed; paired difference to {baseline}, 95 %", "test accuracy %", "")


def _mean_maps(run: Run) -> list[list[np.ndarray]]:
    """Return the maps before and after, one per layer, averaged over samples and heads."""
    phases = [load_file(run.folder / "attention" / f"{phase}.safetensors") for phase in ("before", "after")]
    return [[maps.astype(np.float32).mean((0, 1)) for maps in phase.values()] for phase in phases]


def _attention(panel: SubFigure, title: str, phases: Sequence[Sequence[np.ndarray]], bright: float) -> None:
    """Two rows, before and after; a column per layer; a square-root colour scale that all panels share."""
    axes = panel.subplots(2, len(phases[0]), squeeze=False)
    for row, (phase, maps) in enumerate(zip(("before", "after"), phases, strict=True)):
        for column, values in enumerate(maps):
            axis = axes[row, column]
            axis.imshow(values**0.5, cmap="magma", vmin=0, vmax=bright**0.5, interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
            if row == 0:
                axis.set_title(f"layer {column}", fontsize=8, color="#555555")
        axes[row, 0].set_ylabel(phase, fontsize=9, color="#555555")
    panel.suptitle(f"Attention, {title}", fontsize=11)


def _label(axis: Axes, title: str, x: str, y: str) -> None:
    axis.set_title(title, fontsize=11, loc="left")
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)

"""Statistics of the attention maps over depth, one small plot per statistic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from callbacks.figures.mosaic import FAINT, INK, short_names
from structured_init.analysis.summary import STATISTICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = ("mean_distance", "normalised_entropy", "diagonal_mass", "impulse_mass", "effective_rank", "profile_energy")
COLORS = ("#8a94a6", "#d1495b", "#00798c", "#edae49", "#30638e", "#7b4f9d")


def depth_figure(
    phases: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]], statistics: Sequence[str] = SHOWN
) -> Figure:
    """Draw statistics over depth: a line through the mean of the heads, a dot per head.

    Args:
        phases: label → layer → statistic → values over heads, as ``structured_init.analysis.summarize`` gives them.
        statistics: which ones, by name.
    """
    from matplotlib.figure import Figure

    columns = min(3, len(statistics))
    rows = -(-len(statistics) // columns)
    figure = Figure(figsize=(3.3 * columns, 2.3 * rows + 0.6), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis, statistic in zip(axes, statistics, strict=False):
        _draw(axis, phases, statistic)
    for axis in axes[len(statistics) :]:
        axis.set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.suptitle("Attention over depth: lines are means over heads, dots are heads", fontsize=10, color=INK)
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8, frameon=False)
    return figure


def _draw(axis: Axes, phases: Mapping, statistic: str) -> None:
    names = list(next(iter(phases.values())))
    for index, (label, layers) in enumerate(phases.items()):
        color = COLORS[index % len(COLORS)]
        places = [names.index(name) for name in layers if name in names]
        values = [np.asarray(layers[name][statistic], dtype=float) for name in layers if name in names]
        for place, heads in zip(places, values, strict=True):
            axis.plot([place] * len(heads), heads, ".", color=color, markersize=4, alpha=0.4, markeredgewidth=0)
        axis.plot(places, [heads.mean() for heads in values], "-", color=color, linewidth=1.6, label=label)
    axis.set_title(STATISTICS.get(statistic, statistic), fontsize=8.5, color=INK)
    axis.set_xticks(range(len(names)), short_names(names))
    axis.set_xlabel("layer", fontsize=7.5, color=FAINT)
    axis.tick_params(labelsize=7, length=2, color=FAINT, labelcolor=INK)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color("#c8c8c8")
    axis.set_ylim(bottom=0)
    axis.grid(axis="y", color="#eeeeee", linewidth=0.7)
    axis.set_axisbelow(True)

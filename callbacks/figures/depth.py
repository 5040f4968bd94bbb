"""What changes from layer to layer: statistics of attention, half-lives of states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from callbacks.figures.style import Labelled, every_layer, name_layers, new_figure, read_layers, styled
from structured_init.analysis.summary import STATISTICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = ("mean_distance", "normalised_entropy", "diagonal_mass", "impulse_mass", "effective_rank", "profile_energy")
Statistics = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]  # label → layer → statistic → heads


@styled
def depth_figure(phases: Statistics) -> Figure:
    """Draw statistics over depth: a line through the mean of the heads, a dot per head.

    They are label → layer → statistic → values over heads, as ``structured_init.analysis.summarize`` gives them.
    """
    given = read_layers(
        "depth_figure",
        "statistics, as summarize(maps) gives them",
        phases,
        lambda each: isinstance(each, Mapping) and {*SHOWN} <= each.keys(),
    )
    figure = new_figure(9.9, 5.4)
    for axis, statistic in zip(figure.subplots(2, 3).flatten(), SHOWN, strict=True):
        _draw_statistic(axis, given, statistic)
    figure.suptitle("Attention over depth: lines are means over heads, dots are heads")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _draw_statistic(axis: Axes, phases: Statistics, statistic: str) -> None:
    names = every_layer(phases)
    for label, layers in phases.items():
        places = [names.index(name) for name in layers]
        values = [np.asarray(each[statistic], dtype=float) for each in layers.values()]
        # The marker is seen where there is one layer, and so no line.
        (line,) = axis.plot(places, [heads.mean() for heads in values], marker="D", markersize=3, label=label)
        for place, heads in zip(places, values, strict=True):
            axis.plot([place] * len(heads), heads, ".", color=line.get_color(), alpha=0.4, markeredgewidth=0)
    axis.set(title=STATISTICS[statistic], xlabel="layer")
    if axis.dataLim.y0 >= 0:
        axis.set_ylim(bottom=0)
    axis.grid(axis="y")
    name_layers(axis, names)


@styled
def half_life_figure(models: Labelled) -> Figure:
    """Draw the half-lives of states: a point per layer for the median, and a line from the least to the largest.

    They are label → state-space layer → half-lives in tokens, as ``StateSpaceSite.half_life`` gives them.
    """
    what = "half-lives, as StateSpaceSite.half_life gives them"
    given = read_layers("half_life_figure", what, models, lambda each: isinstance(each, Tensor))
    names = every_layer(given)
    figure = new_figure(3.5 + 0.25 * len(given) * len(names), 3)
    axis = figure.add_subplot()
    step = 0.6 / len(given)  # labels stand beside each other
    for number, (label, layers) in enumerate(given.items()):
        places = [names.index(name) + step * (number - (len(given) - 1) / 2) for name in layers]
        low, middle, high = np.array([[each.min(), each.median(), each.max()] for each in layers.values()]).T
        axis.errorbar(places, middle, (middle - low, high - middle), fmt="o", markersize=5, label=label)
    axis.set_yscale("log")
    axis.set(title="Half-lives: median, least and largest", xlabel="state-space layer")
    axis.set_ylabel("half-life of a state (tokens)")
    axis.grid(axis="y")
    name_layers(axis, names, most=96)
    figure.legend(loc="outside right center")
    return figure

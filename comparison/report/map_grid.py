"""Maps of all arms for a paper: a row per arm, a picture per layer, before on the left and after on the right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from comparison.report.depth import MOMENTS
from comparison.report.theme import FAINT, Style, figure_settings, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LAYERS = 6


def map_grid_figure(
    maps: Mapping[str, Mapping[str, Sequence[Tensor]]],
    styles: Mapping[str, Style],
    names: Sequence[str],
    title: str,
    colors: str,
    limits: Callable[[Sequence[Tensor]], tuple[float, float]],
    power: float = 1.0,
) -> Figure:
    """Draw one square map per arm, moment and layer.

    Args:
        maps: arm → moment → a map per layer.
        styles: style of every arm.
        names: short names of the layers.
        title: what is seen.
        colors: name of the colour map.
        limits: the ends of the colour scale for the maps of one arm and moment; their values may be no numbers.
        power: of the colour scale; ½ keeps weak structure visible beside peaks.
    """
    from matplotlib.colors import PowerNorm

    moments = [moment for moment in MOMENTS if any(moment in of_arm for of_arm in maps.values())]
    count = max(len(layers) for of_arm in maps.values() for layers in of_arm.values())
    kept = sorted({round(place) for place in np.linspace(0, count - 1, min(count, MOST_LAYERS))})
    columns = len(moments) * len(kept) + len(moments) - 1
    side = min(0.72, 6.2 / columns)
    with figure_settings():
        # By hand: laying out a hundred axes takes longer than drawing them.
        left = _widest(maps) + 0.2
        wide, tall = left + side * columns + 0.1, side * len(maps) + 0.55
        figure = new_figure(wide, tall, layout=None)
        box = {"left": left / wide, "right": 1 - 0.1 / wide, "bottom": 0.05 / tall, "top": 1 - 0.5 / tall}
        ratios = (([1.0] * len(kept) + [0.35]) * len(moments))[:columns]
        grid = {**box, "width_ratios": ratios, "wspace": 0.08, "hspace": 0.08}
        axes = figure.subplots(len(maps), columns, squeeze=False, gridspec_kw=grid)
        for axis in axes.flat:
            axis.set(xticks=[], yticks=[])
            axis.grid(visible=False)
            axis.spines[:].set_visible(False)
        for number, (row, (arm, of_arm)) in enumerate(zip(axes, maps.items(), strict=True)):
            label = {"rotation": 0, "ha": "right", "va": "center", "labelpad": 4}
            row[0].set_ylabel(arm, color=styles[arm].paper, **label)
            for block, moment in enumerate(moments):
                for place, layer in enumerate(kept):
                    axis = row[block * (len(kept) + 1) + place]
                    if number == 0:
                        text = f"{moment}: {names[layer]}" if place == 0 else names[layer]
                        axis.set_title(text, color=FAINT, fontsize=6.5)
                    if moment in of_arm and layer < len(of_arm[moment]):
                        norm = PowerNorm(power, *limits(of_arm[moment]))
                        axis.imshow(of_arm[moment][layer].numpy(), cmap=colors, norm=norm, interpolation="nearest")
        figure.suptitle(title, x=0.01, ha="left")
    return figure


def _widest(labels: Iterable[str]) -> float:
    """Return the width in inches of the widest label, in the size of axis labels."""
    from matplotlib import rcParams
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    size = FontProperties(size=rcParams["axes.labelsize"]).get_size_in_points()
    return max(TextPath((0, 0), label, size=size).get_extents().width for label in labels) / 72

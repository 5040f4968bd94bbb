"""Maps of all arms for a paper: a row per arm, a picture per layer, before on the left and after on the right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from comparison.report.depth import MOMENTS
from comparison.report.mosaic import mosaic
from comparison.report.theme import FAINT, Style, figure_settings, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LAYERS = 6
MOST_PIXELS = 144  # that the side of a picture has on paper
BETWEEN = 0.35  # of a picture's side, between before and after


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
    moments = [moment for moment in MOMENTS if any(moment in of_arm for of_arm in maps.values())]
    count = max(len(layers) for of_arm in maps.values() for layers in of_arm.values())
    kept = sorted({round(place) for place in np.linspace(0, count - 1, min(count, MOST_LAYERS))})
    shown = {
        (number, block, place): _colored(of_arm[moment][layer], colors, limits(of_arm[moment]), power)
        for number, of_arm in enumerate(maps.values())
        for block, moment in enumerate(moments)
        for place, layer in enumerate(kept)
        if layer < len(of_arm.get(moment, ()))
    }
    width = len(moments) * len(kept) + BETWEEN * (len(moments) - 1)
    side = min(0.75, 6.2 / width)
    with figure_settings():
        left = _widest(maps) + 0.2
        wide, tall = left + side * width + 0.1, side * len(maps) + 0.55
        figure = new_figure(wide, tall, layout=None)
        for block, moment in enumerate(moments):
            place = {key[::2]: picture for key, picture in shown.items() if key[1] == block}
            image, pixels, step = mosaic(place, len(maps), len(kept))
            x = left + side * block * (len(kept) + BETWEEN)
            axis = figure.add_axes((x / wide, 0.05 / tall, side * len(kept) / wide, side * len(maps) / tall))
            axis.imshow(image, interpolation="nearest", aspect="auto", extent=(0, len(kept), len(maps), 0))
            axis.grid(visible=False)
            axis.spines[:].set_visible(False)
            axis.set(xticks=[], yticks=[])
            middle = pixels / step / 2
            for column, layer in enumerate(kept):
                text = f"{moment}: {names[layer]}" if column == 0 else names[layer]
                at = {"xytext": (0, 3), "textcoords": "offset points", "ha": "center", "annotation_clip": False}
                axis.annotate(text, (column + middle, 0), color=FAINT, fontsize=6.5, **at)
            if block == 0:
                axis.set_yticks([number + middle for number in range(len(maps))], list(maps))
                for label, arm in zip(axis.get_yticklabels(), maps, strict=True):
                    label.set(color=styles[arm].paper, fontsize="medium")
        figure.suptitle(title, x=0.01, y=1 - 0.04 / tall, ha="left", va="top", parse_math=True)
    return figure


def _colored(values: Tensor, colors: str, limits: tuple[float, float], power: float) -> np.ndarray:
    """Return the colours of a map, (height, width, 4); transparent where it has no numbers."""
    import matplotlib
    from matplotlib.colors import PowerNorm

    every = -(-max(values.shape) // MOST_PIXELS)
    shown = np.ma.masked_invalid(values.numpy()[::every, ::every])
    return matplotlib.colormaps[colors](PowerNorm(power, *limits)(shown))


def _widest(labels: Iterable[str]) -> float:
    """Return the width in inches of the widest label, in the size of axis labels."""
    from matplotlib import rcParams
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    size = FontProperties(size=rcParams["axes.labelsize"]).get_size_in_points()
    return max(TextPath((0, 0), label, size=size).get_extents().width for label in labels) / 72

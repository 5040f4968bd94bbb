"""Many small pictures as one image per label: rows are layers, columns are heads.

One image instead of hundreds of axes keeps panels sharp and equal, and drawing fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from callbacks.figures.style import FAINT, WIDEST, colour_bar_ends, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage


@dataclass
class Mosaic:
    """Panels of one label."""

    label: str  # what the panels show, e.g. ``"before"``
    panels: Mapping[str, Tensor]  # name beside a layer → panels (heads, height, width), which may be fewer and smaller
    columns: Mapping[int, str]  # number of a head → caption of its column; those alone are drawn
    norm: Normalize  # the colour scale; mosaics that share it share a colour bar
    caption: str  # of the colour bar
    grid: int | None = None  # distance of helper lines inside a panel, in pixels; None draws none
    side: np.ndarray = field(init=False)  # (height, width) of a panel in pixels
    pitch: np.ndarray = field(init=False)  # (height, width) from one panel to the next

    def __post_init__(self) -> None:
        self.side = np.max([panels.shape[1:] for panels in self.panels.values()], axis=0)
        self.pitch = self.side + max(1, round(self.side.max() * 0.06))

    def times(self, panels: Tensor) -> int:
        """Return how many pixels a number of a smaller layer is wide and high, so that its proportions stay."""
        return int((self.side // panels.shape[1:]).min())

    def rows(self) -> list[object]:
        """Return what tells its rows from those of another: layers, and the size of a panel."""
        return [*self.panels, *self.side]

    def image(self) -> np.ndarray:
        """Return all panels in one array; where there is none, NaN."""
        rows, columns = len(self.panels), len(self.columns)
        canvas = np.full((rows, columns) * self.pitch, np.nan)
        for row, panels in enumerate(self.panels.values()):
            shown = panels[[head for head in self.columns if head < len(panels)]].detach().float().cpu()
            enlarged = np.kron(shown.numpy(), np.ones((self.times(panels), self.times(panels))))
            for column, panel in enumerate(enlarged):
                top, left = (row, column) * self.pitch
                canvas[top : top + panel.shape[0], left : left + panel.shape[1]] = panel
        return canvas

    def draw(self, axis: Axes, colors: str) -> AxesImage:
        """Draw the panels, with their layers' names."""
        import matplotlib

        palette = matplotlib.colormaps[colors].with_extremes(bad="white")
        image = axis.imshow(self.image(), cmap=palette, norm=self.norm)
        axis.set_title(self.label)
        middle = (self.side - 1) / 2
        axis.set_xticks(middle[1] + self.pitch[1] * np.arange(len(self.columns)), self.columns.values())
        axis.set_yticks(middle[0] + self.pitch[0] * np.arange(len(self.panels)), [*self.panels])
        axis.set_ylabel("layer")
        axis.tick_params(length=0, top=False, labeltop=True, labelbottom=False, labelcolor=FAINT)
        axis.spines[:].set_visible(False)
        axis.set_anchor("N")
        if self.grid:
            self._draw_grid(axis, self.grid)
        return image

    def _draw_grid(self, axis: Axes, grid: int) -> None:
        """Separate the rows of the image inside every panel, and frame the blocks of a row with itself."""
        from matplotlib.patches import Rectangle

        places = np.arange(0, self.side[0], grid)
        faint = {"colors": "white", "linewidths": 0.3, "alpha": 0.35}
        for panel in np.ndindex(len(self.panels), len(self.columns)):
            top, left = panel * self.pitch - 0.5
            bottom, right = np.array([top, left]) + self.side
            axis.hlines(top + places[1:], left, right, **faint)
            axis.vlines(left + places[1:], top, bottom, **faint)
            for place in places:
                size = min(grid, self.side[0] - place)
                corner = (left + place, top + place)
                axis.add_patch(Rectangle(corner, size, size, fill=False, edgecolor="white", linewidth=0.6))


def captions(numbers: Sequence[int], what: str = "head") -> dict[int, str]:
    """Return a caption per head, or per other thing with a number, spelled out on the first."""
    return {number: f"{what} {number}" if number == numbers[0] else str(number) for number in numbers}


def mosaic_figure(
    mosaics: Sequence[Mosaic], title: str, colors: str, panel_inches: float = 1.2, together: int = 1
) -> Figure:
    """Draw mosaics under one title, with a colour bar at the right of those that share a scale.

    All stand side by side where there is room, else two labels do, each of ``together`` mosaics.
    """
    inches = panel_inches * np.array([len(mosaic.columns) for mosaic in mosaics])
    abreast = len(mosaics) if sum(inches) < WIDEST else min(2 * together, len(mosaics))
    rows = -(-len(mosaics) // abreast)
    widths = [max(inches[column::abreast]) for column in range(abreast)]
    # Panels become narrower than they should be where the figure would become too wide.
    panel = panel_inches * min(1.0, (WIDEST - 2) / sum(widths))
    tall = max(panel * len(mosaic.panels) * mosaic.pitch[0] / mosaic.pitch[1] for mosaic in mosaics)
    norms = list(dict.fromkeys(mosaic.norm for mosaic in mosaics))
    width = sum(widths) * panel / panel_inches + 0.7 * len(norms) + 1
    figure = new_figure(width, rows * (tall + 0.4) + 0.5, layout="compressed")
    axes = figure.subplots(rows, abreast, squeeze=False, width_ratios=widths).flatten()
    figure.suptitle(title, wrap=True)
    images = []
    for number, mosaic in enumerate(mosaics):
        images.append(mosaic.draw(axes[number], colors))
        if number % abreast and mosaics[number - 1].rows() == mosaic.rows():  # which are named at the left
            axes[number].set(yticklabels=[], ylabel="")
    for axis in axes[len(mosaics) :]:
        axis.set_visible(False)
    for norm in norms:
        (alike,) = np.nonzero([mosaic.norm is norm for mosaic in mosaics])
        below = len(set(alike // abreast))  # rows that the bar stands beside
        beside = inches[alike].sum() / below
        figure.colorbar(
            images[alike[0]],
            ax=axes[alike],
            label=mosaics[alike[0]].caption,
            extend=colour_bar_ends([images[number] for number in alike]),
            aspect=30,
            fraction=0.12 / beside,
            pad=0.01,
            shrink=min(1.0, 3.5 / (below * tall)),
            anchor=(0.0, 1.0),
        )
    return figure

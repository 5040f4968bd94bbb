"""Many small pictures as one image per label: rows are layers, columns are heads.

One image instead of hundreds of axes keeps panels sharp and equal, and drawing fast.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from structured_init.errors import StructuredInitError
from structured_init.files import replacing
from structured_init.names import short_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

Layer = TypeVar("Layer")
INK, FAINT = "#222222", "#8a8a8a"
SEQUENTIAL, DIVERGING = "magma", "RdBu_r"
# Inches: around the panels, between mosaics, per colour bar, how wide a figure becomes, and the least of its bars.
LEFT, TOP, BOTTOM, GAP, BAR = 0.7, 0.85, 0.15, 0.3, 0.85
NARROWEST, WIDEST, SHORTEST = 6.6, 15.0, 1.2
ROW, NARROW = 0.6, 0.8  # inches between rows of mosaics; of a panel's width, from which on they go into rows
LEAST = 0.25  # inches of a panel
APART = 0.12  # inches between ticks of a colour bar: their labels are 0.1 high
NAMES = 7  # points of the names of layers and heads


@dataclass
class Mosaic:
    """Panels of one label."""

    label: str  # what the panels show, e.g. ``"before"``
    # name beside a layer → panels (columns, height, width); a layer may have fewer columns, and smaller panels
    panels: Mapping[str, Tensor]
    columns: Sequence[str]  # a caption per column
    grid: int | None = None  # distance of helper lines inside a panel, in pixels; None draws none
    scales: Sequence[str] = ()  # of each layer, where they have scales of their own, to stand under its name
    side: np.ndarray = field(init=False)
    pitch: np.ndarray = field(init=False)
    size: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        """Find, as (height, width) in pixels, a panel, the way from one to the next, and the whole."""
        self.side = np.max([panel.shape[1:] for panel in self.panels.values()], axis=0)
        gap = max(1, round(self.side.max() * 0.06))
        self.pitch = self.side + gap
        self.size = np.array([len(self.panels), len(self.columns)]) * self.pitch - gap

    def image(self) -> np.ndarray:
        """Return all panels in one array; where there is none, NaN."""
        canvas = np.full(self.size, np.nan)
        for row, panels in enumerate(self.panels.values()):
            enlarged = np.kron(panels.detach().float().cpu().numpy(), np.ones((self.times(panels),) * 2))
            for column, panel in enumerate(enlarged):
                top, left = (row, column) * self.pitch
                canvas[top : top + panel.shape[0], left : left + panel.shape[1]] = panel
        return canvas

    def names(self) -> list[str]:
        """Return what stands beside each layer."""
        names = [*self.panels]
        return [f"{name}\n{scale}" for name, scale in zip(names, self.scales, strict=True)] if self.scales else names

    def times(self, panels: Tensor) -> int:
        """Return how many pixels a number of a smaller layer is wide and high, so that its proportions stay."""
        return int((self.side // panels.shape[1:]).min())


def mosaic_figure(
    mosaics: Sequence[Mosaic],
    title: str,
    norms: Sequence[Normalize],
    colors: str,
    bars: Sequence[str],
    panel_inches: float = 1.2,
    ticks: Sequence[float] | None = None,
    together: int = 1,
) -> Figure:
    """Draw mosaics side by side under one title, with colour bars on the right of the first row that has their colours.

    ``norms`` are the colour scales of the mosaics, ``bars`` the captions of those that are distinct, in order of
    appearance. A panel is narrower than ``panel_inches`` where the figure would become too wide; more than two labels,
    each of ``together`` mosaics, then go into several rows.
    """
    from matplotlib.figure import Figure

    labels = each = len(mosaics) // together
    new = [norm not in norms[:place] for place, norm in enumerate(norms)]  # which of them brings a colour bar
    room = lambda end: _panel(mosaics[:end], sum(new[:end]), panel_inches)  # noqa: E731
    while labels > 2 and each > 1 and room(each * together) < NARROW * panel_inches:
        more = -(-labels // (-(-labels // each) + 1))  # a row more
        each = min(more, each - 1)
        each -= each > 2 and each % 2 > labels % 2  # before and after stay side by side
    rows = [mosaics[first : first + each * together] for first in range(0, len(mosaics), each * together)]
    counts = [sum(new[first : first + each * together]) for first in range(0, len(mosaics), each * together)]
    panel = min(_panel(row, max(counts), panel_inches) for row in rows)
    margin = max(_rooms(row)[0] for row in rows)
    content = max(margin - _rooms(row)[0] + _fixed(row, max(counts)) + panel * _columns(row) for row in rows)
    least = SHORTEST if len(rows) == 1 else 0.0
    deepest = [max(least, *(panel * len(m.panels) * m.pitch[0] / m.pitch[1] for m in row)) for row in rows]
    width, height = max(NARROWEST, content), sum(deepest) + TOP + BOTTOM + ROW * (len(rows) - 1)
    figure = Figure(figsize=(width, height))
    figure.suptitle(title, fontsize=10, color=INK, y=1 - 0.12 / height, va="top")
    images, scales, tops, top, end = {}, iter(norms), [], TOP, 0.0
    for row, deep in zip(rows, deepest, strict=True):
        tops.append(top)
        rooms = _rooms(row)
        left = (width - content) / 2 + margin - rooms[0]
        for mosaic, room in zip(row, rooms, strict=True):
            left += room
            norm = next(scales)
            # Pixels are square whatever the number of rows and columns; mosaics hang from the top.
            tall, inches = panel * mosaic.size / mosaic.pitch[1]
            axis = figure.add_axes([left / width, (height - top - tall) / height, inches / width, tall / height])
            images.setdefault(id(norm), _draw(axis, mosaic, norm, colors, named=room > GAP))
            axis.title.set_fontsize(min(9.0, 130 * inches / max(len(mosaic.label), 1)))  # a letter: 0.55 of its size
            left += inches
        top, end = top + deep + ROW, max(end, left)
    places = [(top, deep, number) for top, deep, n in zip(tops, deepest, counts, strict=True) for number in range(n)]
    for image, caption, (top, deep, number) in zip(images.values(), bars, places, strict=True):
        tall = min(deep if any(counts[1:]) else height - TOP - BOTTOM, 3.2)
        box = [(end + number * BAR + 0.15) / width, (height - top - tall) / height, 0.11 / width, tall / height]
        own = [mosaic for mosaic, norm in zip(mosaics, norms, strict=True) if norm is image.norm]
        panels = [panel for mosaic in own for panel in mosaic.panels.values()]
        below = any((panel < image.norm.vmin).any() for panel in panels)
        above = any((panel > image.norm.vmax).any() for panel in panels)
        extend = {(True, True): "both", (True, False): "min", (False, True): "max"}.get((below, above), "neither")
        bar = figure.colorbar(image, cax=figure.add_axes(box), ticks=ticks, extend=extend)
        if ticks is not None:
            apart: list[float] = []
            for tick in sorted(ticks):
                apart += [tick] if not apart or (image.norm(tick) - image.norm(apart[-1])) * tall > APART else []
            bar.set_ticks(apart, labels=[f"{tick:.2g}" for tick in apart])
            bar.minorticks_off()
        bar.set_label(caption, fontsize=8, color=INK)
        bar.ax.tick_params(labelsize=7, length=2, color=FAINT, labelcolor=INK)
        bar.outline.set_visible(False)
    return figure


def _rooms(row: Sequence[Mosaic]) -> list[float]:
    """Return the inches left of each mosaic of a row: names of layers stand there, where none on the left are level."""
    level = [
        one.names() == other.names() and one.side[0] * other.side[1] == one.side[1] * other.side[0]
        for one, other in itertools.pairwise(row)
    ]
    return [
        GAP if same else max(LEFT, 0.3 + longest(mosaic.names()))
        for mosaic, same in zip(row, [False, *level], strict=True)
    ]


def longest(names: Sequence[str]) -> float:
    """Return the inches that the longest of some names of layers needs."""
    from matplotlib.textpath import TextPath

    lines = (line for name in names for line in name.split("\n"))
    paths = (TextPath((0, 0), line, size=NAMES) for line in lines if line.strip())  # one of no letters is an error
    return max((path.get_extents().width for path in paths), default=0.0) / 72


def _fixed(row: Sequence[Mosaic], bars: int) -> float:
    return sum(_rooms(row)) + BAR * bars


def _columns(row: Sequence[Mosaic]) -> int:
    return sum(len(mosaic.columns) for mosaic in row)


def _panel(row: Sequence[Mosaic], bars: int, panel_inches: float) -> float:
    """Return the width of a panel with which a row of mosaics is not too wide, as far as anything can be seen in it."""
    return min(panel_inches, max(LEAST, (WIDEST - _fixed(row, bars)) / _columns(row)))


def save_figure(figure: Figure, path: str | PathLike[str], dpi: int = 170) -> None:
    """Write a figure as PNG, under its final name only when it is complete; a name for another format is refused."""
    if Path(path).suffix not in ("", ".png"):
        raise StructuredInitError(f"save_figure writes PNG: name the file '{Path(path).with_suffix('.png').name}'")
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=dpi, format="png", facecolor="white")


def plain_curves(axis: Axes) -> None:
    """Leave of an axis of curves what is read off it: two lines, faint ticks, and a grid behind the curves."""
    axis.tick_params(labelsize=7, length=2, color=FAINT, labelcolor=INK)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color("#c8c8c8")
    axis.grid(axis="y", color="#eeeeee", linewidth=0.7)
    axis.set_axisbelow(True)


def wrapped(label: str, inches: float, size: float) -> str:
    """Break a label into lines that are about so long where it is written in letters of ``size`` points.

    A formula, between two ``$``, stays whole.
    """
    return label if label.count("$") > 1 else textwrap.fill(label, max(1, int(inches * 72 / (0.62 * size))))


def name_layers(axis: Axes, names: Sequence[str], most: int = 16) -> float:
    """Write what tells layers apart below an axis, at most ``most`` of them, and turned where a name is long.

    Returns:
        The inches that they then need downwards; 0 where they stand level.
    """
    captions, every = short_names(names), max(1, -(-len(names) // most))
    level = max(map(len, captions), default=0) < 4
    axis.set_xticks(range(0, len(names), every), captions[::every], rotation=0 if level else 90)
    return 0.0 if level else longest(captions) + 0.05


def every_layer(labels: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Return the layers of all labels, in the order of one that has them all, or of the numbers in their names."""
    names = list(dict.fromkeys(name for layers in labels.values() for name in layers))
    by_number = sorted(names, key=lambda name: re.sub(r"\d+", lambda number: number[0].zfill(9), name))
    return names if any(names == [*layers] for layers in labels.values()) else by_number


def evenly(count: int, limit: int) -> list[int]:
    """Return at most ``limit`` indices out of ``count``, the first and the last among them."""
    return sorted({round(i) for i in np.linspace(0, count - 1, min(count, limit))})


def thinned(layers: Mapping[str, Layer], limit: int) -> dict[str, Layer]:
    """Return at most ``limit`` layers, the first and the last among them, by what tells their names from all names."""
    named = list(zip(short_names([*layers]), layers.values(), strict=True))
    return dict(named[i] for i in evenly(len(named), limit))


def head_captions(heads: Sequence[int | str], what: str = "head") -> list[str]:
    """Return a caption per head, or per other thing with a number, spelled out on the first."""
    return [f"{what} {head}" if i == 0 else str(head) for i, head in enumerate(heads)]


def quantile(tensors: Sequence[Tensor], share: float) -> float:
    """Return a quantile of all values but nan, or 0; torch's own refuses more than 2²⁴ of them."""
    values = torch.cat([tensor[~tensor.isnan()] for tensor in tensors])
    return values.kthvalue(max(1, round(share * values.numel()))).values.item() if len(values) else 0.0


def _draw(axis: Axes, mosaic: Mosaic, norm: Normalize, colors: str, named: bool) -> AxesImage:
    import matplotlib

    palette = matplotlib.colormaps[colors].with_extremes(bad="white")
    image = axis.imshow(mosaic.image(), cmap=palette, norm=norm, interpolation="auto", aspect="auto")
    x, (down, across) = (mosaic.side[1] - 1) / 2, mosaic.pitch
    axis.set_xticks(x + across * np.arange(len(mosaic.columns)), mosaic.columns)
    middles = [(panels.shape[1] * mosaic.times(panels) - 1) / 2 for panels in mosaic.panels.values()]
    names = mosaic.names() if named else [""] * len(mosaic.panels)
    axis.set_yticks(middles + down * np.arange(len(mosaic.panels)), names)
    axis.tick_params(labelsize=NAMES, length=0, top=False, labeltop=True, labelbottom=False, pad=3, labelcolor=FAINT)
    axis.spines[:].set_visible(False)
    axis.set_title(mosaic.label, fontsize=9, color=INK, pad=6)
    if named:
        axis.set_ylabel("layer", fontsize=8, color=FAINT)
    if mosaic.grid:
        _lines(axis, mosaic)
    return image


def _lines(axis: Axes, mosaic: Mosaic) -> None:
    """Separate the rows of the image inside every panel, and frame the blocks of a row with itself."""
    from matplotlib.collections import LineCollection, PatchCollection
    from matplotlib.patches import Rectangle

    segments, frames = [], []
    for row, panels in enumerate(mosaic.panels.values()):
        grid, side = np.array([mosaic.grid, panels.shape[-1]]) * mosaic.times(panels)
        for column in range(len(panels)):
            top, left = (row, column) * mosaic.pitch - 0.5
            for place in range(grid, side, grid):
                segments.append([(left + place, top), (left + place, top + side)])
                segments.append([(left, top + place), (left + side, top + place)])
            for place in range(0, side, grid):
                size = min(grid, side - place)
                frames.append(Rectangle((left + place, top + place), size, size))
    axis.add_collection(LineCollection(segments, colors="white", linewidths=0.3, alpha=0.35))
    axis.add_collection(PatchCollection(frames, facecolor="none", edgecolor="white", linewidths=0.6, alpha=0.9))

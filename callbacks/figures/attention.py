"""Attention in pictures: whole maps, their corner, and the average by offset.

Maps come as label → layer name → tensor with heads first, so that ``{"before": …, "after": …}`` stand side by side on
one colour scale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from callbacks.figures.mosaic import Mosaic, captions, mosaic_figure
from callbacks.figures.style import (
    INK,
    SEQUENTIAL,
    Labelled,
    evenly,
    every_value,
    quantile,
    read_layers,
    styled,
    thinned,
)
from structured_init.util.errors import StructuredInitError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CORNER = 48  # patches of a corner that is shown
REACH = 7  # patches or tokens from a query, up to which a profile is shown
STRIP = 5  # pixels of a sequence's profile, which has one row, downwards
MAPS = "maps averaged over samples (heads, tokens, tokens), as maps.mean(0) is"


@styled
def map_figure(maps: Labelled, max_heads: int = 12) -> Figure:
    """Draw whole attention maps: label → layer → maps averaged over samples (heads, tokens, tokens).

    More than 12 layers and ``max_heads`` heads are thinned out evenly. A map smaller than others is enlarged by a whole
    number, and blank beyond.
    """
    given = read_layers("map_figure", MAPS, maps)
    return _draw(given, "Attention maps: a row is a query, a column a key", max_heads=max_heads)


@styled
def zoom_figure(maps: Labelled, columns: int, prefix_tokens: int = 0) -> Figure:
    """Draw the upper left corner of the maps of the first, middle and last layers.

    Args:
        maps: label → layer → maps averaged over samples (heads, tokens, tokens), all of one size.
        columns: patches in a row of the image; lines separate its rows.
        prefix_tokens: class and register tokens, which are left out.
    """
    end = prefix_tokens + CORNER
    corners: dict[str, dict[str, Tensor]] = {}
    for label, layers in read_layers("zoom_figure", MAPS, maps).items():
        corners[label] = {}
        for name, layer in layers.items():
            tokens = layer.shape[-1]
            if tokens <= prefix_tokens or (tokens - prefix_tokens) % columns:
                patches = f"{columns} patches after {prefix_tokens} prefix tokens"
                raise StructuredInitError(f"zoom_figure: maps of {tokens} tokens have no rows of {patches}")
            corners[label][name] = layer[:, prefix_tokens:end, prefix_tokens:end]
    shown = max(layer.shape[-1] for layer in every_value(corners))
    title = f"Attention among the first {shown} patches: lines separate image rows, frames mark a row with itself"
    return _draw(corners, title, 3, 6, grid=columns, panel_inches=1.9)


@styled
def profile_figure(profiles: Labelled) -> Figure:
    """Draw the average attention at every offset, a dot where it is the query's own; a sequence's is a strip.

    Profiles are label → layer → (heads, 2·rows − 1, 2·columns − 1), shown up to 7 patches or tokens. More than 12
    layers and heads are thinned out evenly.
    """
    given = read_layers("profile_figure", "offset profiles (heads, rows, columns)", profiles)
    sizes = np.array([profile.shape[1:] for profile in every_value(given)])
    down, across = np.minimum(REACH, (sizes.min(axis=0) - 1) // 2)
    is_sequence = sizes[:, 0].max() == 1
    centred: dict[str, dict[str, Tensor]] = {}
    for label, layers in given.items():
        centred[label] = {}
        for name, profile in layers.items():
            y, x = profile.shape[1] // 2, profile.shape[2] // 2
            panels = profile[:, y - down : y + down + 1, x - across : x + across + 1]
            centred[label][name] = panels.expand(-1, STRIP, -1) if is_sequence else panels
    unit = "tokens" if is_sequence else "patches"
    title = f"Average attention by offset, up to ±{max(down, across)} {unit}: a dot marks the query"
    figure = _draw(centred, title)
    for axis in figure.axes[: len(given)]:
        queries = np.meshgrid(axis.get_xticks(), axis.get_yticks())
        axis.plot(*queries, "o", color="white", markersize=2.2, markeredgecolor=INK, markeredgewidth=0.3)
    return figure


def _draw(
    maps: Labelled,
    title: str,
    max_layers: int = 12,
    max_heads: int = 12,
    grid: int | None = None,
    panel_inches: float = 1.2,
) -> Figure:
    from matplotlib.colors import PowerNorm

    kept = {label: thinned(layers, max_layers) for label, layers in maps.items()}
    top = quantile(every_value(kept), 0.999)
    # The square root keeps weak structure visible beside sharp peaks, on one scale for all panels.
    norm = PowerNorm(0.5, vmin=0, vmax=max(top, 1e-6))
    mosaics = []
    for label, layers in kept.items():
        heads = evenly(max(len(layer) for layer in layers.values()), max_heads)
        mosaics.append(Mosaic(label, layers, captions(heads), norm, "attention", grid))
    return mosaic_figure(mosaics, title, SEQUENTIAL, panel_inches)

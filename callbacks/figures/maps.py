"""Attention maps and offset profiles, layers × heads, one block per moment of the training.

All take label → layer name → tensor with heads first, so that ``{"before": …, "after": …}`` stand side by side on one
colour scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from callbacks.figures.mosaic import SEQUENTIAL, Mosaic, evenly, head_captions, mosaic_figure, quantile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TICKS = (0.8, 0.5, 0.3, 0.15, 0.05, 0.02, 0.008, 0.003, 0.001)

Labelled = Mapping[str, Mapping[str, Tensor]]


def map_figure(maps: Labelled, max_layers: int = 12, max_heads: int = 12) -> Figure:
    """Draw whole attention maps.

    Args:
        maps: label → layer → maps averaged over samples (heads, tokens, tokens).
        max_layers: more layers are thinned out evenly.
        max_heads: more heads are thinned out evenly.
    """
    title = "Attention maps, averaged over the probe samples: a row is a query, a column a key"
    return _figure(maps, title, max_layers, max_heads)


def zoom_figure(
    maps: Labelled, columns: int, prefix_tokens: int = 0, side: int = 48, max_layers: int = 3, max_heads: int = 6
) -> Figure:
    """Draw the upper left corner of the maps of the first, middle and last layers.

    Args:
        maps: label → layer → maps averaged over samples (heads, tokens, tokens).
        columns: patches in a row of the image; lines separate its rows.
        prefix_tokens: class and register tokens, which are left out.
        side: how many patches are shown.
        max_layers: number of layers.
        max_heads: number of heads.
    """
    end = prefix_tokens + side
    corner = {
        label: {name: layer[:, prefix_tokens:end, prefix_tokens:end] for name, layer in layers.items()}
        for label, layers in maps.items()
    }
    shown = max(layer.shape[-1] for layers in corner.values() for layer in layers.values())
    title = f"Attention among the first {shown} patches: lines separate image rows, frames mark a row with itself"
    return _figure(corner, title, max_layers, max_heads, grid=columns, panel_inches=1.9)


def profile_figure(profiles: Labelled, reach: int = 7, max_layers: int = 12, max_heads: int = 12) -> Figure:
    """Draw the average attention at every offset, the query in the centre.

    Args:
        profiles: label → layer → offset profiles (heads, 2·rows − 1, 2·columns − 1).
        reach: offsets up to this many patches are shown.
        max_layers: more layers are thinned out evenly.
        max_heads: more heads are thinned out evenly.
    """
    sizes = [size for layers in profiles.values() for profile in layers.values() for size in profile.shape[1:]]
    reach = min(reach, (min(sizes) - 1) // 2)
    centred = {
        label: {name: _centre(profile, reach) for name, profile in layers.items()} for label, layers in profiles.items()
    }
    title = f"Average attention by offset, up to ±{reach} patches: the query is in the centre of each panel"
    return _figure(centred, title, max_layers, max_heads)


def _figure(
    maps: Labelled, title: str, max_layers: int, max_heads: int, grid: int | None = None, panel_inches: float = 1.2
) -> Figure:
    from matplotlib.colors import PowerNorm

    mosaics = []
    for label, layers in maps.items():
        names = list(layers)
        layers = {names[i]: layers[names[i]] for i in evenly(len(names), max_layers)}
        heads = evenly(max(len(layer) for layer in layers.values()), max_heads)
        kept = {name: layer[[head for head in heads if head < len(layer)]] for name, layer in layers.items()}
        mosaics.append(Mosaic(label, kept, head_captions(heads), grid))
    top = max(quantile([layer for m in mosaics for layer in m.panels.values()], 0.999), 1e-6)
    # The square root keeps weak structure visible beside sharp peaks, on one scale for all panels.
    norm = PowerNorm(0.5, vmin=0, vmax=top)
    # Those of the range that lie far enough apart and from zero under the square root.
    ticks = [0.0, *[tick for tick in TICKS if top / 100 < tick <= top]]
    return mosaic_figure(mosaics, title, [norm] * len(mosaics), SEQUENTIAL, ["attention"], panel_inches, ticks)


def _centre(profile: Tensor, reach: int) -> Tensor:
    y, x = profile.shape[1] // 2, profile.shape[2] // 2
    return profile[:, y - reach : y + reach + 1, x - reach : x + reach + 1]

"""Weights in pictures: weight products, depthwise filters with their covariances and variances, half-lives of states.

Filters come as label → layer name → filters (F, h, w), so that ``{"before": …, "after": …}`` stand above or beside each
other. Their panels have a scale each, since layers differ by orders of magnitude and the pattern is the point; a number
under a panel says how large it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from callbacks.figures.attention import COLORS, Labelled, labelled
from callbacks.figures.mosaic import (
    DIVERGING,
    FAINT,
    INK,
    NAMES,
    SEQUENTIAL,
    Mosaic,
    evenly,
    every_layer,
    head_captions,
    longest,
    mosaic_figure,
    name_layers,
    plain_curves,
    quantile,
    thinned,
    wrapped,
)
from structured_init.analysis import WeightProducts
from structured_init.analysis.filters import block_grid, variance_map
from structured_init.errors import StructuredInitError
from structured_init.linalg import empirical_covariance

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

# Inches: left of the panels, above, between rows, right of them, and how wide a figure becomes.
LEFT, TOP, BETWEEN, RIGHT, WIDEST = 0.45, 0.6, 0.32, 0.2, 15.0
BAR = 0.75


@labelled("weight products, as weight_products(site) gives them of attention_sites(model)", WeightProducts, None)
def product_figure(
    models: Mapping[str, Mapping[str, WeightProducts]],
    side: int = 64,
    max_layers: int = 12,
    max_heads: int = 6,
    same_scale: bool = True,
) -> Figure:
    """Draw W_q W_kᵀ of every head and W_v W_o of every layer, upper left corners.

    Args:
        models: label → layer name → products; a second model stands beside the first.
        side: how many rows and columns of the products are shown. A smaller product is enlarged by a whole number as
            far as it fits, and blank beyond, so that its diagonal stays i = j.
        max_layers: more layers are thinned out evenly.
        max_heads: more heads are thinned out evenly.
        same_scale: one colour scale for all models, which compares sizes; False gives each its own, which compares
            patterns.

    Raises:
        StructuredInitError: a model has no layer to draw.
    """
    for label, layers in models.items():
        if not layers:
            raise StructuredInitError(
                f"'{label}' has no weight products to draw: `attention_sites(model, batch=batch)` finds attention of "
                "unknown classes, and with cross=True cross-attention as well"
            )
    mosaics = [
        mosaic for label, layers in models.items() for mosaic in _pair(label, layers, side, max_layers, max_heads)
    ]
    groups = [mosaics] if same_scale else [mosaics[i : i + 2] for i in range(0, len(mosaics), 2)]
    norms, bars = [], []
    for group, label in zip(groups, models, strict=False):
        norms += [_symmetric(group[0::2]), _symmetric(group[1::2])] * (len(group) // 2)
        bars += [text if same_scale else f"{label}: {text}" for text in ("$W_q W_k^\\top$", "$W_v W_o$")]
    sizes = list({panels.shape[1:] for mosaic in mosaics for panels in mosaic.panels.values()})
    said = "{}{} × {}".format("up to " if len(sizes) > 1 else "", *np.max(sizes, axis=0))
    title = f"Weight products, upper left {said}: red is positive, blue negative"
    return mosaic_figure(mosaics, title, norms, DIVERGING, bars, together=2)


def _pair(label: str, layers: Mapping[str, WeightProducts], side: int, max_layers: int, max_heads: int) -> list[Mosaic]:
    """Return the mosaics of one model: heads, and value–output."""
    kept = thinned(layers, max_layers)
    heads = evenly(max(len(products.query_key) for products in kept.values()), max_heads)
    query_key = {
        name: products.query_key[[head for head in heads if head < len(products.query_key)], :side, :side]
        for name, products in kept.items()
    }
    value_output = {name: products.value_output[None, :side, :side] for name, products in kept.items()}
    return [
        Mosaic(f"{label}: $W_q W_k^\\top$", query_key, head_captions(heads)),
        Mosaic("$W_v W_o$", value_output, ["all heads"]),
    ]


def _symmetric(mosaics: Sequence[Mosaic]) -> Normalize:
    from matplotlib.colors import Normalize

    # Of a 64 × 64 corner the diagonal is 1.6 %: this quantile lies on it where it stands out.
    limit = max(quantile([panels.abs() for mosaic in mosaics for panels in mosaic.panels.values()], 0.995), 1e-9)
    return Normalize(-limit, limit)


@labelled("filters (F, h, w), as depthwise_filters(model) gives them")
def covariance_figure(moments: Labelled, max_layers: int = 8) -> Figure:
    """Draw the covariance of each layer's filters: block (i, j) shows Cov(f_ij, f_lm) over all (l, m).

    Of 1-D filters it is the matrix itself, whose row i shows Cov(f_i, f_m) over all m. Below each stand its trace and
    where its colours end: at the largest value of 1-D filters; of others where 1 % lie beyond, variances among them,
    or at a twentieth of the largest where that is more.
    Moments are label → layer → filters (F, h, w); more than ``max_layers`` layers are thinned out evenly. What tells
    their names apart stands above them.

    Source: the figures of covariances of arXiv 2210.03651.
    """

    def panel(axis: Axes, filters: Tensor) -> str:
        covariance = empirical_covariance(filters)
        rows, columns = filters.shape[1:]
        # The blocks of 1-D filters are rows, which stand below each other.
        picture = (covariance if min(rows, columns) == 1 else block_grid(covariance, (rows, columns))).numpy()
        # Of 2-D filters variances are the largest by far, and few: on their scale the structure would be invisible.
        most = np.abs(picture).max()
        limit = max(most if min(rows, columns) == 1 else np.quantile(np.abs(picture), 0.99), 0.05 * most)
        axis.imshow(picture / (limit or 1), cmap=DIVERGING, vmin=-1, vmax=1, interpolation="nearest", aspect="equal")
        for place in range(rows, len(picture), rows) if min(rows, columns) > 1 else ():
            axis.axhline(place - 0.5, color="#9a9a9a", linewidth=0.25)
        for place in range(columns, picture.shape[1], columns) if min(rows, columns) > 1 else ():
            axis.axvline(place - 0.5, color="#9a9a9a", linewidth=0.25)
        return f"trace {covariance.trace():.3g}, ± {limit:.2g}"

    flat = all(1 in filters.shape[1:] for layers in moments.values() for filters in layers.values())
    title = f"Covariance of the filters: each {'row' if flat else 'block'} shows one weight's with all weights"
    return _panels(moments, title, panel, max_layers, 1.75, DIVERGING, (-1, 1), "covariance, own scale (±)")


@labelled("filters (F, h, w), as depthwise_filters(model) gives them")
def variance_figure(moments: Labelled, max_layers: int = 12) -> Figure:
    """Draw the variance of each weight over a layer's filters; arguments are those of :func:`covariance_figure`."""

    def panel(axis: Axes, filters: Tensor) -> str:
        variances = _strips(variance_map(filters)[None])[0].numpy()
        top = max(variances.max(), 1e-30)
        axis.imshow(variances / top, cmap=SEQUENTIAL, vmin=0, vmax=1, interpolation="nearest", aspect="equal")
        return f"max {variances.max():.2g}"

    title = "Variance of each weight over the filters of a layer"
    return _panels(moments, title, panel, max_layers, 1.05, SEQUENTIAL, (0, 1), "variance, own scale")


@labelled("filters (F, h, w), as depthwise_filters(model) gives them")
def filter_figure(moments: Labelled, max_layers: int = 8, max_filters: int = 10) -> Figure:
    """Draw some filters of each layer, ``max_filters`` at most: those of the same numbers in all layers and moments.

    They are chosen evenly among the numbers that every layer has, or are the first where a layer has fewer. Beside each
    layer stand the ends of its colours: 99.5 % of its weights lie between. The other arguments are those of
    :func:`covariance_figure`.
    """
    from matplotlib.colors import Normalize

    kept = {label: thinned(layers, max_layers) for label, layers in moments.items()}
    counts = [len(filters) for layers in kept.values() for filters in layers.values()]
    shown = evenly(max(min(counts), min(max(counts), max_filters)), max_filters)
    mosaics = []
    for label, layers in kept.items():
        largest = {name: quantile([filters.abs()], 0.995) for name, filters in layers.items()}
        panels = {
            name: _square(filters[[number for number in shown if number < len(filters)]] / (largest[name] or 1.0))
            for name, filters in layers.items()
        }
        scales = [f"± {largest[name]:.2g}" for name in panels]
        mosaics.append(Mosaic(label, panels, head_captions(shown, "filter"), scales=scales))
    norm = Normalize(-1, 1)
    title = "Filters, each row on its own scale (±): red is positive, blue negative"
    return mosaic_figure(mosaics, title, [norm] * len(mosaics), DIVERGING, ["weight, own scale"], 0.62)


@labelled("half-lives, as StateSpaceSite.half_life gives them", axes=None)
def half_life_figure(models: Labelled) -> Figure:
    """Draw the half-lives of states: a point per layer for the median, and a line from the least to the largest.

    They are label → state-space layer → half-lives in tokens, as ``StateSpaceSite.half_life`` gives them.
    """
    from matplotlib.figure import Figure

    names = every_layer(models)
    figure = Figure(figsize=(min(WIDEST, 3.5 + 0.25 * len(models) * len(names)), 3), layout="constrained")
    axis = figure.add_subplot()
    for number, (label, layers) in enumerate(models.items()):
        low, middle, high = ([each.quantile(share).item() for each in layers.values()] for share in (0.0, 0.5, 1.0))
        beside = min(0.15, 0.8 / len(models)) * (number - (len(models) - 1) / 2)
        places, (turn, color) = [names.index(name) + beside for name in layers], divmod(number, len(COLORS))
        color, marker = COLORS[color], "osD^v"[turn % 5]
        axis.vlines(places, low, high, color=color, linewidth=1.6)
        axis.plot(places, middle, marker, color=color, markersize=5, label=label)
    axis.set_yscale("log")
    down = name_layers(axis, names, most=96)
    figure.set_figheight(3 + down)
    axis.set_xlabel("state-space layer", fontsize=8, color=FAINT)
    axis.set_ylabel("half-life of a state (tokens)", fontsize=8, color=INK)
    axis.set_title("Half-lives: median, least and largest", fontsize=9, color=INK)
    axis.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    plain_curves(axis)
    return figure


def _panels(
    moments: Labelled,
    title: str,
    panel: Callable[[Axes, Tensor], str],
    max_layers: int,
    inches: float,
    colors: str,
    limits: tuple[float, float],
    caption: str,
) -> Figure:
    """Draw a row of panels per label and a column per layer, with one colour bar for all.

    The names of layers stand above a row where they are not those of the row above it.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    rows = {label: thinned(layers, max_layers) for label, layers in moments.items()}
    count = max(len(layers) for layers in rows.values())
    step = min(inches, (WIDEST - LEFT - BAR - RIGHT) / count)
    names = [list(layers) for layers in rows.values()]
    between = BETWEEN + 0.2 * any(each != names[0] for each in names)
    labels = [wrapped(label, step + between, 9) for label in rows]
    left = LEFT + 0.15 * max(label.count("\n") for label in labels)
    content = left + count * step + BAR + RIGHT
    width, height = max(content, 6.4), TOP + len(rows) * (step + between)
    start = (width - content) / 2 + left
    figure = Figure(figsize=(width, height))
    figure.suptitle(title, fontsize=10, color=INK, y=1 - 0.12 / height, va="top")
    side = 0.93 * step
    for row, (label, layers) in enumerate(zip(labels, rows.values(), strict=True)):
        bottom = height - TOP - step - row * (step + between)
        captions = head_captions(names[row], "layer")
        size = min(7.5, NAMES * side / longest(captions))
        for column, (name, filters) in enumerate(zip(captions, layers.values(), strict=True)):
            axis = figure.add_axes([(start + column * step) / width, bottom / height, side / width, side / height])
            below = panel(axis, filters)
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_color("#cfcfcf")
            axis.set_xlabel(below, fontsize=7, color=FAINT, labelpad=3)
            if row == 0 or names[row] != names[row - 1]:
                axis.set_title(name, fontsize=size, color=FAINT, pad=4)
            if column == 0:
                axis.set_ylabel(label, fontsize=9, color=INK, labelpad=6)
    left, bottom = start + count * step + 0.1, height - TOP - step
    beside = figure.add_axes([left / width, bottom / height, 0.11 / width, side / height])
    drawn = [axis.images[0].get_array() for axis in figure.axes if axis.images]
    below, above = any((each < -1).any() for each in drawn), any((each > 1).any() for each in drawn)
    extend = "both" if below else "max" if above else "neither"  # the largest covariance is a variance
    bar = figure.colorbar(
        ScalarMappable(Normalize(*limits), colors), cax=beside, ticks=sorted({*limits, 0}), extend=extend
    )
    bar.set_label(caption, fontsize=8, color=INK)
    bar.ax.tick_params(labelsize=7, length=2, color=FAINT, labelcolor=INK)
    bar.outline.set_visible(False)
    return figure


def _strips(filters: Tensor) -> Tensor:
    """Repeat filters that are one weight wide or high (F, 1, k): of many weights a line of one would not be seen."""
    rows, columns = filters.shape[1:]
    return filters.expand(-1, max(rows, columns // 5), max(columns, rows // 5)) if 1 in (rows, columns) else filters


def _square(filters: Tensor) -> Tensor:
    """Pad filters of unequal sides by nan, which is drawn white."""
    filters = _strips(filters)
    rows, columns = filters.shape[1:]
    side = max(rows, columns)
    top, left = (side - rows) // 2, (side - columns) // 2
    padding = (left, side - columns - left, top, side - rows - top)
    return torch.nn.functional.pad(filters.float(), padding, value=float("nan"))

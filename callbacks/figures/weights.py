"""Weights in pictures: weight products, depthwise filters with their covariances and variances.

Filters come as label → layer name → filters (F, h, w), so that ``{"before": …, "after": …}`` stand above or beside each
other. Their panels have a scale each, since layers differ by orders of magnitude and the pattern is the point; a number
under a panel says how large it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from callbacks.figures.mosaic import Mosaic, captions, mosaic_figure
from callbacks.figures.style import (
    DIVERGING,
    PALE,
    SEQUENTIAL,
    Labelled,
    colour_bar_ends,
    evenly,
    every_value,
    new_figure,
    quantile,
    read_layers,
    styled,
    thinned,
)
from structured_init.analysis import WeightProducts
from structured_init.analysis.filters import block_grid, variance_map
from structured_init.util.linalg import empirical_covariance

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

PRODUCTS = "weight products, as weight_products(site) gives them of attention_sites(model)"
MOST_LAYERS, MOST_HEADS, MOST_FILTERS = 12, 6, 10
LAYERS_OF_FILTERS = 8  # whose panels are large
FILTERS = "filters (F, h, w), as depthwise_filters(model) gives them"
QUERY_KEY, VALUE_OUTPUT = "$W_q W_k^\\top$", "$W_v W_o$"


@styled
def product_figure(
    models: Mapping[str, Mapping[str, WeightProducts]], side: int = 64, same_scale: bool = True
) -> Figure:
    """Draw W_q W_kᵀ of up to 6 heads and W_v W_o, upper left corners, of up to 12 layers; more are thinned out evenly.

    Args:
        models: label → layer name → products; a second model stands beside the first.
        side: how many rows and columns of the products are shown. A smaller product is enlarged by a whole number as
            far as it fits, and blank beyond, so that its diagonal stays i = j.
        same_scale: one colour scale for all models, which compares sizes; False gives each its own, which compares
            patterns.

    Raises:
        StructuredInitError: a model has no layer to draw.
    """
    given = read_layers("product_figure", PRODUCTS, models, lambda each: isinstance(each, WeightProducts))
    query_key: dict[str, dict[str, Tensor]] = {}
    value_output: dict[str, dict[str, Tensor]] = {}
    for label, layers in given.items():
        kept = thinned(layers, MOST_LAYERS)
        query_key[label] = {name: each.query_key[:, :side, :side] for name, each in kept.items()}
        value_output[label] = {name: each.value_output[None, :side, :side] for name, each in kept.items()}
    norms = _symmetric(query_key), _symmetric(value_output)
    mosaics = []
    for label in given:
        if not same_scale:
            norms = _symmetric({label: query_key[label]}), _symmetric({label: value_output[label]})
        heads = evenly(max(len(panels) for panels in query_key[label].values()), MOST_HEADS)
        mosaics.append(Mosaic(f"{label}: {QUERY_KEY}", query_key[label], captions(heads), norms[0], QUERY_KEY))
        mosaics.append(Mosaic(VALUE_OUTPUT, value_output[label], {0: "all heads"}, norms[1], VALUE_OUTPUT))
    title = f"Weight products, upper left corners up to {side} × {side}: red is positive, blue negative"
    return mosaic_figure(mosaics, title, DIVERGING, together=2)


def _symmetric(labels: Labelled) -> Normalize:
    from matplotlib.colors import Normalize

    # Of a 64 × 64 corner the diagonal is 1.6 %: this quantile lies on it where it stands out.
    sizes = [panels.abs() for panels in every_value(labels)]
    limit = max(quantile(sizes, 0.995), 1e-9)
    return Normalize(-limit, limit)


@styled
def filter_figure(moments: Labelled) -> Figure:
    """Draw 10 filters of each layer at most: those of the same numbers in all layers and moments.

    They are chosen evenly among the numbers that every layer has, or are the first where a layer has fewer. Beside each
    layer stand the ends of its colours: 99.5 % of its weights lie between. Moments are those of
    :func:`covariance_figure`.
    """
    from matplotlib.colors import Normalize

    given = read_layers("filter_figure", FILTERS, moments)
    kept = {label: thinned(layers, LAYERS_OF_FILTERS) for label, layers in given.items()}
    counts = [len(filters) for filters in every_value(kept)]
    numbers = evenly(max(min(counts), min(max(counts), MOST_FILTERS)), MOST_FILTERS)
    norm = Normalize(-1, 1)
    mosaics = []
    for label, layers in kept.items():
        panels = {}
        for name, filters in layers.items():
            largest = quantile([filters.abs()], 0.995)
            panels[f"{name}\n± {largest:.2g}"] = _widened(filters / (largest or 1.0))
        mosaics.append(Mosaic(label, panels, captions(numbers, "filter"), norm, "weight, own scale"))
    title = "Filters, each row on its own scale (±): red is positive, blue negative"
    return mosaic_figure(mosaics, title, DIVERGING, panel_inches=0.62)


@styled
def covariance_figure(moments: Labelled) -> Figure:
    """Draw the covariance of each layer's filters: block (i, j) shows Cov(f_ij, f_lm) over all (l, m).

    Of 1-D filters it is the matrix itself, whose row i shows Cov(f_i, f_m) over all m. Below each stand its trace and
    where its colours end: 1 % lie beyond, variances among them, unless that is below a twentieth of the largest.
    Moments are label → layer → filters (F, h, w); more than 8 layers are thinned out evenly. What tells their names
    apart stands above them.

    Source: the figures of covariances of arXiv 2210.03651.
    """

    def draw(axis: Axes, filters: Tensor) -> tuple[AxesImage, str]:
        covariance = empirical_covariance(filters)
        rows, columns = filters.shape[1:]
        is_line = min(rows, columns) == 1
        # The blocks of 1-D filters are rows, which stand below each other.
        picture = (covariance if is_line else block_grid(covariance, (rows, columns))).numpy()
        # Of 2-D filters variances are the largest by far, and few: on their scale the structure would be invisible.
        limit = max(np.quantile(np.abs(picture), 0.99), 0.05 * np.abs(picture).max())
        image = axis.imshow(picture / (limit or 1), cmap=DIVERGING, vmin=-1, vmax=1)
        if not is_line:
            faint = {"colors": "#9a9a9a", "linewidths": 0.25}
            axis.hlines(np.arange(rows, picture.shape[0], rows) - 0.5, *axis.get_xlim(), **faint)
            axis.vlines(np.arange(columns, picture.shape[1], columns) - 0.5, *axis.get_ylim(), **faint)
        return image, f"trace {covariance.trace():.3g}, ± {limit:.2g}"

    title = "Covariance of the filters: each block (of 1-D filters, row) shows one weight's with all"
    given = read_layers("covariance_figure", FILTERS, moments)
    return _panels(given, title, draw, LAYERS_OF_FILTERS, 1.75, "covariance, own scale (±)")


@styled
def variance_figure(moments: Labelled) -> Figure:
    """Draw the variance of each weight over a layer's filters, of up to 12 layers, as :func:`covariance_figure`."""

    def draw(axis: Axes, filters: Tensor) -> tuple[AxesImage, str]:
        variances = _widened(variance_map(filters)[None])[0].numpy()
        largest = variances.max()
        return axis.imshow(variances / (largest or 1), cmap=SEQUENTIAL, vmin=0, vmax=1), f"max {largest:.2g}"

    title = "Variance of each weight over the filters of a layer"
    given = read_layers("variance_figure", FILTERS, moments)
    return _panels(given, title, draw, MOST_LAYERS, 1.05, "variance, own scale")


def _panels(
    moments: Labelled,
    title: str,
    draw: Callable[[Axes, Tensor], tuple[AxesImage, str]],
    max_layers: int,
    inches: float,
    caption: str,
) -> Figure:
    """Draw a row of panels per label and a column per layer, with one colour bar for all."""
    kept = {label: thinned(layers, max_layers) for label, layers in moments.items()}
    count = max(len(layers) for layers in kept.values())
    figure = new_figure(inches * count + 1.5, (inches + 0.4) * len(kept) + 0.5, layout="compressed")
    axes = figure.subplots(len(kept), count, squeeze=False)
    figure.suptitle(title, wrap=True)
    images = []
    for row, (label, layers) in zip(axes, kept.items(), strict=True):
        row[0].set_ylabel(label)
        for axis, (name, filters) in zip(row, layers.items(), strict=False):
            image, below = draw(axis, filters)
            images.append(image)
            axis.set_xlabel(below, fontsize=7)
            axis.set_title(f"layer {name}" if axis is row[0] else name, fontsize=7.5)
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set(visible=True, color=PALE)
        for axis in row[len(layers) :]:
            axis.set_visible(False)
    figure.colorbar(images[0], ax=axes, label=caption, extend=colour_bar_ends(images), aspect=30)
    return figure


def _widened(filters: Tensor) -> Tensor:
    """Repeat filters along a line (F, 1, k) or (F, k, 1) to squares, in which their weights are stripes."""
    rows, columns = filters.shape[1:]
    if 1 not in (rows, columns):
        return filters
    return filters.expand(-1, max(rows, columns), max(rows, columns))

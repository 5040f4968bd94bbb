"""Weight products, layers × (heads and value–output), one block per model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from callbacks.figures.mosaic import DIVERGING, Mosaic, evenly, head_captions, mosaic_figure, quantile
from structured_init.errors import StructuredInitError

if TYPE_CHECKING:
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    from structured_init.analysis import WeightProducts


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
        side: how many rows and columns of the products are shown.
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
                f"'{label}' has no weight products to draw: where `attention_sites(model)` is empty, its attention is "
                "of an unknown class, and `attention_sites(model, batch=batch)` finds it"
            )
    mosaics = [
        mosaic for label, layers in models.items() for mosaic in _pair(label, layers, side, max_layers, max_heads)
    ]
    groups = [mosaics] if same_scale else [mosaics[i : i + 2] for i in range(0, len(mosaics), 2)]
    norms, bars = [], []
    for group, label in zip(groups, models, strict=False):
        norms += [_symmetric(group[0::2]), _symmetric(group[1::2])] * (len(group) // 2)
        bars += [text if same_scale else f"{label}: {text}" for text in ("$W_q W_k^\\top$", "$W_v W_o$")]
    title = f"Weight products, upper left {mosaics[0].side} × {mosaics[0].side}: red is positive, blue negative"
    return mosaic_figure(mosaics, title, norms, DIVERGING, bars)


def _pair(label: str, layers: Mapping[str, WeightProducts], side: int, max_layers: int, max_heads: int) -> list[Mosaic]:
    """Return the mosaics of one model: heads, and value–output."""
    names = list(layers)
    kept = {names[i]: layers[names[i]] for i in evenly(len(names), max_layers)}
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

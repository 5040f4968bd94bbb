"""The weight products of one run per initialization, before and after training, as the run wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from markupsafe import Markup
from torch import Tensor

from comparison.report.data import ReportData
from comparison.report.depth import MOMENTS, TITLES, depth_figure, mean_over_heads
from comparison.report.drawing import Drawing, short
from comparison.report.map_grid import map_grid_figure
from comparison.report.panels.picker import picker_piece
from comparison.report.pictures import DIVERGING, product_picker
from comparison.report.registry import Html, Piece, note, register_panel
from comparison.report.sentences import plain
from comparison.report.tensors import read_tensors
from comparison.results.run_record import read_json
from structured_init.analysis import WeightProducts

WHAT = Html(
    Markup(
        "<p><i>W<sub>q</sub>W<sub>k</sub></i><sup>⊤</sup> decides which token attends to which, "
        "<i>W<sub>v</sub>W<sub>o</sub></i> what is passed on.</p>"
    ),
    "W_q W_kᵀ decides which token attends to which, W_v W_o what is passed on.",
)
SCALE = "Upper left corners; red is positive, blue negative; each arm and moment has its own scale, named below it."

Layers = dict[str, WeightProducts]


@register_panel("Weight products, before and after", label="Weights")
def weight_products(data: ReportData) -> list[Piece] | None:
    """Return the products to choose from, and their diagonals over depth; None where no run has kept any."""
    found = {arm: read_products(run.folder / "weight_products") for arm, run in data.shown.items()}
    corners = {arm: products for arm, (products, _) in found.items() if products}
    if not corners:
        return None
    summaries = {arm: found[arm][1] for arm in corners}
    layers = short(list(next(iter(next(iter(corners.values())).values()))))
    heads = {
        arm: {moment: [layer.query_key[0] for layer in of_layers.values()] for moment, of_layers in moments.items()}
        for arm, moments in corners.items()
    }
    title = "$W_q W_k^\\top$ of the first head, each row of a block on its own scale"
    figure = map_grid_figure(heads, data.styles, layers, title, DIVERGING, _symmetric)
    text = "Weight products of every layer's first head, before and after training"
    picker = product_picker(corners, layers)
    missing = [f"{arm} is not shown: its run kept no weight products." for arm in data.shown if arm not in corners]
    names = next(iter(next(iter(next(iter(summaries.values())).values())).values()))
    return [
        WHAT,
        picker_piece(data, picker, [Drawing(figure, "weight_products", text)]),
        note(" ".join([data.shown_text(), SCALE, *picker.notes, *missing])),
        *(_over_depth(data, name, summaries, layers) for name in names),
    ]


def read_products(folder: Path) -> tuple[dict[str, Layers], dict[str, dict[str, dict[str, Any]]]]:
    """Return the corners of a run's weight products and their summaries, both moment → layer → value.

    Args:
        folder: ``weight_products`` of the run, as ``callbacks.WeightProductsCallback`` writes it; empty results where
            it is missing.

    Raises:
        StructuredInitError: a file is damaged.
    """
    if not (folder / "summary.json").is_file():
        return {}, {}
    written = read_json(folder / "summary.json")
    corners: dict[str, Layers] = {}
    for moment in MOMENTS:
        path = folder / f"{moment}.safetensors"
        if moment in written and path.is_file():
            stored = read_tensors(path)
            corners[moment] = {
                layer: WeightProducts(stored[f"{layer}:query_key"], stored[f"{layer}:value_output"])
                for layer in written[moment]
                if f"{layer}:query_key" in stored
            }
    return corners, {moment: written[moment] for moment in corners}


def _over_depth(data: ReportData, name: str, summaries: dict, layers: list[str]) -> Drawing:
    values = {
        arm: {
            moment: np.array([mean_over_heads(layer[name]) for layer in of_layers.values()])
            for moment, of_layers in moments.items()
        }
        for arm, moments in summaries.items()
    }
    title = plain(TITLES.get(name, name))
    figure = depth_figure(name, values, data.styles, layers)
    return Drawing(figure, f"weights_{name}", f"{title}, in every layer before and after training")


def _symmetric(values: list[Tensor]) -> tuple[float, float]:
    """Return the ends of a scale around zero, of the values that are numbers."""
    joined = torch.cat([value.flatten() for value in values]).abs()
    joined = joined[torch.isfinite(joined)]
    limit = max(float(np.quantile(joined.numpy(), 0.995)), 1e-9) if len(joined) else 1.0
    return -limit, limit

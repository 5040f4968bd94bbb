"""Attention maps, weight products and statistics of every layer, before and after training, as the runs wrote them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor

from comparison.report.data import MOMENTS, Place, ReportData
from comparison.report.depth import SHOWN, TITLES, attention_statistics, depth_figure, layer_names, over_layers
from comparison.report.findings import without_formulas
from comparison.report.pictures import (
    DIVERGING,
    SEQUENTIAL,
    Maps,
    Picker,
    largest,
    make_picker,
    map_grid_figure,
    one_scale,
    symmetric_end,
)
from comparison.report.registry import Html, Piece, note, register_panel
from comparison.report.theme import Drawing
from comparison.results.folder import Run, read_json
from comparison.results.tables import count
from structured_init.analysis import WeightProducts, offset_profile
from structured_init.analysis.statistics import mean_map
from structured_init.util.files import read_tensors
from structured_init.util.names import short_names

MAPS_WHAT = (
    "Each map averages the probe’s samples: rows are queries, columns are keys. “By offset” averages over all pairs of "
    "patches, or tokens, at the same offset, the query in the centre: the convolution that a head resembles."
)
MAPS_SCALE = (
    "All pictures of a view have one colour scale: the square root of attention, so that weak structure is seen "
    "beside peaks."
)
PRODUCTS_WHAT = Html(
    Markup(
        "<p><i>W<sub>q</sub>W<sub>k</sub></i><sup>⊤</sup> decides which token attends to which; "
        "<i>W<sub>v</sub>W<sub>o</sub></i> decides what is passed on.</p>"
    ),
    "W_q W_kᵀ decides which token attends to which; W_v W_o decides what is passed on.",
)
PRODUCTS_SCALE = (
    "Upper left corners; red is positive, blue negative; each arm and moment has its own scale, which stands beside it."
)
LAYERS_WHAT = (
    "Each line is the mean over heads and seeds; for scores of circuits it is the mean of the best heads. Left: before"
    " training. Right: after. Both have one scale."
)

Products = Mapping[Place, Mapping[str, WeightProducts]]  # of an arm and a moment → layer


@register_panel("Attention, before and after", label="Attention")
def attention(data: ReportData) -> list[Piece] | None:
    """Return the maps to choose from, or why there are none; None where no run was to have any."""
    maps, profiles = attention_maps(data.shown)
    if not maps:
        reasons = dict.fromkeys(why for run in data.runs for why in run.missing.get("attention", {}).values())
        return [f"Attention was not captured: {'; '.join(reasons)}."] if reasons else None
    layers = layer_names(maps.values())
    means = {place: {name: heads[0] for name, heads in of_layers.items()} for place, of_layers in maps.items()}
    top = largest([mean for of_layers in means.values() for mean in of_layers.values()])
    title = "Attention, mean of the heads"
    figure = map_grid_figure(means, data.styles, layers, title, SEQUENTIAL, lambda _: (0, top), power=0.5)
    text = "Attention maps of every layer, mean of the heads, before and after training"
    picker = attention_picker(maps, profiles, layers)
    return [
        MAPS_WHAT,
        picker.piece(data, [Drawing(figure, "attention", text)]),
        note(" ".join([data.shown_text(), MAPS_SCALE, *picker.notes])),
    ]


def attention_maps(runs: Mapping[str, Run]) -> tuple[Maps, Maps]:
    """Return maps and offset profiles of every arm's run, averaged over samples; the first head is the heads' mean."""
    with_mean = lambda heads: torch.cat([heads.mean(dim=0, keepdim=True), heads])  # noqa: E731
    maps: dict[Place, dict[str, Tensor]] = {}
    profiles: dict[Place, dict[str, Tensor]] = {}
    for arm, run in runs.items():
        folder = run.folder / "attention"
        if not (folder / "meta.json").is_file():
            continue
        captures = read_json(folder / "meta.json")["captures"]
        for moment in MOMENTS:
            path = folder / f"{moment}.safetensors"
            if moment not in captures or not path.is_file():
                continue
            stored = read_tensors(path)
            places = {name: place for name, place in captures[moment]["layers"].items() if name in stored}
            if not places:
                continue
            maps[arm, moment] = {name: with_mean(mean_map(stored[name].float())) for name in places}
            if all(place["grid"] for place in places.values()):
                profiles[arm, moment] = {
                    name: with_mean(offset_profile(stored[name].float(), place["grid"], place["prefix_tokens"]))
                    for name, place in places.items()
                }
    return maps, profiles


def attention_picker(maps: Maps, profiles: Maps, layers: Mapping[str, str]) -> Picker:
    """Return the pictures of attention: every map on one scale, every offset profile on one."""
    most = max(len(heads) for of_layers in maps.values() for heads in of_layers.values())
    heads = ["mean", *map(str, range(most - 1))]
    views = {"map": maps, "by offset": profiles}
    return make_picker("attention", views, layers, heads, SEQUENTIAL, one_scale)


@register_panel("Weight products, before and after", label="Weights")
def weight_products(data: ReportData) -> list[Piece] | None:
    """Return the products to choose from, and their diagonals over depth; None where no run has kept any."""
    corners: dict[Place, dict[str, WeightProducts]] = {}
    summaries: dict[Place, dict[str, dict[str, Any]]] = {}
    for arm, run in data.shown.items():
        for moment, (products, written) in read_products(run.folder / "weight_products").items():
            corners[arm, moment], summaries[arm, moment] = products, written
    if not corners:
        return None
    layers = layer_names(corners.values())
    limits = lambda values: (-symmetric_end(values), symmetric_end(values))  # noqa: E731
    drawings = []
    for name, title, what, of in (
        (
            "weight_products",
            "$W_q W_k^\\top$ of the first head",
            f"W_q W_kᵀ of the first head in each of {count(len(layers), 'layer')}",
            lambda one: one.query_key[0],
        ),
        (
            "weight_products_value_output",
            "$W_v W_o$",
            f"W_v W_o of {count(len(layers), 'layer')}",
            lambda one: one.value_output,
        ),
    ):
        shown = {place: {name: of(one) for name, one in of_layers.items()} for place, of_layers in corners.items()}
        figure = map_grid_figure(shown, data.styles, layers, title, DIVERGING, limits)
        drawings.append(Drawing(figure, name, f"{what}, before and after training"))
    picker = product_picker(corners, layers)
    names = next(iter(next(iter(summaries.values())).values()))
    depths = {
        name: {place: over_layers(of_layers, name, layers) for place, of_layers in summaries.items()} for name in names
    }
    return [
        PRODUCTS_WHAT,
        picker.piece(data, drawings),
        note(" ".join([data.shown_text(), PRODUCTS_SCALE, *picker.notes])),
        *(_depth_drawing(data, "weights", name, values, list(layers.values())) for name, values in depths.items()),
    ]


def read_products(folder: Path) -> dict[str, tuple[dict[str, WeightProducts], dict[str, dict[str, Any]]]]:
    """Return moment → the corners of a run's weight products and their summaries, both by layer; empty without any."""
    written = read_json(folder / "summary.json") if (folder / "summary.json").is_file() else {}
    found = {}
    for moment in MOMENTS:
        path = folder / f"{moment}.safetensors"
        if moment in written and path.is_file():
            stored = read_tensors(path)
            corners = {
                layer: WeightProducts(stored[f"{layer}:query_key"], stored[f"{layer}:value_output"])
                for layer in written[moment]
                if f"{layer}:query_key" in stored
            }
            found[moment] = corners, written[moment]
    return found


def product_picker(products: Products, layers: Mapping[str, str]) -> Picker:
    """Return the pictures of W_q W_kᵀ of every head and of W_v W_o.

    Each arm and moment has a scale of its own, which its caption names: products of structured initializations are a
    hundred times larger than others.
    """
    count = max(len(layer.query_key) for of_layers in products.values() for layer in of_layers.values())
    heads = [*(f"head {head}" for head in range(count)), "WᵥWₒ"]
    scaled: dict[Place, dict[str, Tensor]] = {}
    captions: dict[Place, list[str]] = {}
    for place, of_layers in products.items():
        of_both = zip(*((layer.query_key, layer.value_output) for layer in of_layers.values()), strict=True)
        ends = list(map(symmetric_end, of_both))
        scaled[place] = {
            name: torch.cat(
                [
                    layer.query_key / ends[0],
                    layer.query_key.new_full((count - len(layer.query_key), *layer.query_key.shape[1:]), torch.nan),
                    layer.value_output[None] / ends[1],
                ]
            )
            for name, layer in of_layers.items()
        }
        captions[place] = [*[f"±{ends[0]:.2g}"] * count, f"±{ends[1]:.2g}"]
    around_zero = lambda _: (lambda values: (values / 2 + 0.5).clamp(0, 1), [])  # noqa: E731
    return make_picker("products", {"products": scaled}, layers, heads, DIVERGING, around_zero, {"products": captions})


@register_panel("Layer by layer", label="Layers")
def layers(data: ReportData) -> list[Piece] | None:
    """Return a figure per statistic; None where no run has attention maps."""
    names, values = attention_statistics(data.complete)
    order = [name for name in (*SHOWN, "structure_left") if name in values]
    if not order:
        return None
    return [
        LAYERS_WHAT,
        *(_depth_drawing(data, "layers", name, values[name], short_names(names)) for name in order),
    ]


def _depth_drawing(data: ReportData, prefix: str, name: str, values: dict, layers: list[str]) -> Drawing:
    places = ((arm, moment) for arm in data.manifest["arms"] for moment in MOMENTS)
    ordered = {place: values[place] for place in places if place in values}
    moments = "" if name == "structure_left" else " before and after training"
    text = f"{without_formulas(TITLES.get(name, name))}, in every layer{moments}"
    return Drawing(depth_figure(name, ordered, data.styles, layers), f"{prefix}_{name}", text)

"""Attention maps and weight products as small pictures inside the page, for every arm, layer and head."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from comparison.report.depth import MOMENTS
from comparison.report.tensors import read_tensors
from comparison.results.run_record import RunRecord, read_json
from structured_init.analysis import WeightProducts, offset_profile

LARGEST_SIDE = 128  # pixels; larger maps are averaged down
BUDGET = 2_000_000  # characters of one picker's pictures
SEQUENTIAL, DIVERGING = "magma", "RdBu_r"

Arms = Mapping[str, Mapping[str, Mapping[str, Tensor]]]  # arm → moment → layer → (heads, side, side)


@dataclass
class Picker:
    """Pictures to choose from.

    Attributes:
        name: of the picker on the page.
        layers: names of the layers.
        heads: names of what each layer has.
        views: view → arm → moment → pictures [layer][head] in base64 PNG; None where there is none.
        captions: view → arm → moment → caption [head].
        notes: what was left out.
        scale: ticks of the colour bar, (place in [0, 1], text); empty where every picture has its own scale.
    """

    name: str
    layers: list[str]
    heads: list[str]
    views: dict[str, dict[str, dict[str, list[list[str | None]]]]]
    captions: dict[str, dict[str, dict[str, list[str]]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    scale: list[tuple[float, str]] = field(default_factory=list)

    def to_json(self) -> str:
        """Return what the page's script reads."""
        known: dict[str, Any] = {"layers": self.layers, "heads": self.heads, "views": self.views}
        return json.dumps({**known, "captions": self.captions}, separators=(",", ":"))


def attention_maps(runs: Mapping[str, RunRecord]) -> tuple[Arms, Arms]:
    """Return maps and offset profiles of every arm's run, averaged over samples; the first head is the heads' mean."""
    maps: dict[str, dict[str, dict[str, Tensor]]] = {}
    profiles: dict[str, dict[str, dict[str, Tensor]]] = {}
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
            maps.setdefault(arm, {})[moment] = {name: _with_mean(stored[name].float().mean(0)) for name in places}
            if all(place["grid"] for place in places.values()):
                profiles.setdefault(arm, {})[moment] = {
                    name: _with_mean(offset_profile(stored[name].float(), place["grid"], place["prefix_tokens"]))
                    for name, place in places.items()
                }
    return maps, profiles


def attention_picker(maps: Arms, profiles: Arms, layers: list[str]) -> Picker:
    """Return the pictures of attention: every map on one scale, every offset profile on one."""
    first = next(iter(next(iter(maps.values())).values()))
    heads = ["mean", *map(str, range(max(len(layer) for layer in first.values()) - 1))]
    top, views, scale = 1.0, {}, []
    sizes = [len(picture or "") for picture in _sample(first, SEQUENTIAL)]
    pictures = sum(len(moments) for arms in (maps, profiles) for moments in arms.values())
    kept = _affordable(len(layers), len(heads), pictures * sum(sizes) / len(sizes))
    notes = _left_out(kept, (layers, heads))
    maps, profiles = _only(maps, kept), _only(profiles, kept)
    layers, heads = ([names[i] for i in of] for names, of in zip((layers, heads), kept, strict=True))
    for view, arms in (("map", maps), ("by offset", profiles)):
        if arms:
            top = largest(arms)
            views[view] = _encoded(arms, lambda values, top=top: (values / top).clamp(0, 1).sqrt(), SEQUENTIAL)
            scale = scale or [(place, f"{top * place**2:.2g}") for place in (0.0, 0.25, 0.5, 0.75, 1.0)]
            reduced = max(layer.shape[-1] for of_arm in arms.values() for m in of_arm.values() for layer in m.values())
            if reduced > LARGEST_SIDE:
                notes.append(f"Pictures of more than {LARGEST_SIDE} rows are averaged down to {LARGEST_SIDE}.")
    picker = Picker("attention", layers, heads, views, notes=sorted(set(notes)), scale=scale)
    return _within_budget(picker)


def _sample(layers: Mapping[str, Tensor], colors: str) -> list[str | None]:
    """Return the pictures of one layer, for their size."""
    values = list(layers.values())[len(layers) // 2]
    top = max(float(_numbers([values]).abs().max()), 1e-9)
    return [_picture(head, lambda each: (each / top).clamp(0, 1).sqrt(), colors) for head in values]


def _affordable(layers: int, heads: int, each: float) -> tuple[list[int], list[int]]:
    """Return the layers and heads whose pictures are within the budget, before all of them are made.

    Args:
        layers: how many there are.
        heads: how many there are.
        each: characters of the pictures of one layer and head, of all arms, moments and views.
    """
    counts = [layers, heads]
    while counts[0] * counts[1] * each > BUDGET:
        axis = 0 if counts[0] > 4 or counts[1] <= 3 else 1
        if counts[axis] <= 2:
            break
        counts[axis] -= 1
    kept = [sorted({round(p) for p in np.linspace(0, n - 1, c)}) for n, c in zip((layers, heads), counts, strict=True)]
    return kept[0], kept[1]


def _only(arms: Arms, kept: tuple[list[int], list[int]]) -> Arms:
    """Return the maps of the layers and heads that are kept; a network may have fewer of them."""
    return {
        arm: {
            moment: {
                name: values[[head for head in kept[1] if head < len(values)]]
                for number, (name, values) in enumerate(of_layers.items())
                if number in kept[0]
            }
            for moment, of_layers in moments.items()
        }
        for arm, moments in arms.items()
    }


def _left_out(kept: Sequence[Sequence[int]], names: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"Shown are {len(of)} {what}, to keep the page small."
        for of, every, what in zip(kept, names, ("layers", "heads"), strict=True)
        if len(of) < len(every)
    ]


def product_picker(products: Mapping[str, Mapping[str, Mapping[str, WeightProducts]]], layers: list[str]) -> Picker:
    """Return the pictures of W_q W_kᵀ of every head and of W_v W_o.

    Each arm and moment has a scale of its own, which its caption names: products of structured initializations are a
    hundred times larger than others.
    """
    first = next(iter(next(iter(products.values())).values()))
    count = max(len(layer.query_key) for layer in first.values())
    heads = [*(f"head {head}" for head in range(count)), "WᵥWₒ"]
    sizes = [len(picture or "") for picture in _sample({n: each.query_key for n, each in first.items()}, DIVERGING)]
    moments_of_all = sum(len(moments) for moments in products.values())
    kept = _affordable(len(layers), len(heads), moments_of_all * sum(sizes) / len(sizes))
    notes = _left_out(kept, (layers, heads))
    pictures: dict[str, dict[str, list[list[str | None]]]] = {}
    captions: dict[str, dict[str, list[str]]] = {}
    for arm, moments in products.items():
        for moment, of_layers in moments.items():
            joined = list(of_layers.values())
            limits = [
                _limit([layer.query_key for layer in joined]),
                _limit([layer.value_output for layer in joined]),
            ]
            stacked = {
                name: torch.cat([layer.query_key / limits[0], layer.value_output[None] / limits[1]])
                for name, layer in of_layers.items()
            }
            only = _only({arm: {moment: stacked}}, kept)
            encoded = _encoded(only, lambda values: (values / 2 + 0.5).clamp(0, 1), DIVERGING)
            pictures.setdefault(arm, {})[moment] = encoded[arm][moment]
            texts = [f"±{limit:.2g}" for limit in limits]
            every = [*[texts[0]] * count, texts[1]]
            captions.setdefault(arm, {})[moment] = [every[head] for head in kept[1]]
    layers, heads = ([names[i] for i in of] for names, of in zip((layers, heads), kept, strict=True))
    picker = Picker("products", layers, heads, {"products": pictures}, {"products": captions}, notes=notes)
    return _within_budget(picker)


def png(values: np.ndarray, colors: str) -> str:
    """Return values in [0, 1] as a PNG, in base64."""
    places = (255 * values).round().astype(np.uint8)
    palette = np.frombuffer(_palette(colors), np.uint8)
    if 3 * places.size < len(palette):  # of a small picture the palette would be most
        image = Image.fromarray(palette.reshape(-1, 3)[places])
    else:
        image = Image.fromarray(places)
        image.putpalette(palette.tobytes())
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


@lru_cache
def _palette(colors: str) -> bytes:
    import matplotlib

    return (255 * matplotlib.colormaps[colors](np.linspace(0, 1, 256))[:, :3]).round().astype(np.uint8).tobytes()


def largest(arms: Arms) -> float:
    """Return the upper end of the colour scale: above it lies one value in a thousand of those that are numbers."""
    values = [
        layer.flatten() for moments in arms.values() for of_layers in moments.values() for layer in of_layers.values()
    ]
    joined = _numbers(values)
    return max(joined.kthvalue(max(1, round(0.999 * joined.numel()))).values.item(), 1e-6)


def _encoded(arms: Arms, scaled: Any, colors: str) -> dict[str, dict[str, list[list[str | None]]]]:
    """Return arm → moment → pictures [layer][head]."""
    return {
        arm: {
            moment: [[_picture(head, scaled, colors) for head in layer] for layer in of_layers.values()]
            for moment, of_layers in moments.items()
        }
        for arm, moments in arms.items()
    }


def _picture(values: Tensor, scaled: Any, colors: str) -> str | None:
    """Return a small picture; none of a head that diverged, whose values are no numbers."""
    return png(_small(values, scaled), colors) if torch.isfinite(values).all() else None


def _numbers(values: list[Tensor]) -> Tensor:
    """Return all values that are numbers, in one row; a zero where there is none."""
    joined = torch.cat([value.flatten() for value in values])
    joined = joined[torch.isfinite(joined)]
    return joined if len(joined) else joined.new_zeros(1)


def _small(values: Tensor, scaled: Any) -> np.ndarray:
    values = values.detach().float()
    if max(values.shape) > LARGEST_SIDE:
        size = [min(side, LARGEST_SIDE) for side in values.shape]
        values = torch.nn.functional.adaptive_avg_pool2d(values[None], size)[0]
    return scaled(values).numpy()


def _with_mean(heads: Tensor) -> Tensor:
    return torch.cat([heads.mean(dim=0, keepdim=True), heads])


def _limit(values: list[Tensor]) -> float:
    joined = _numbers(values).abs()
    # Of a 64 × 64 corner the diagonal is 1.6 %: this quantile lies on it where it stands out.
    return max(joined.kthvalue(max(1, round(0.995 * joined.numel()))).values.item(), 1e-9)


def _within_budget(picker: Picker) -> Picker:
    """Thin out layers, then heads, until the page stays small; the notes say what is left."""
    while (size := _size(picker)) > BUDGET:
        by_layers = len(picker.layers) > 4 or len(picker.heads) <= 3
        names = picker.layers if by_layers else picker.heads
        if len(names) <= 2:
            break
        wanted = max(2, min(len(names) - 1, int(len(names) * BUDGET / size)))
        kept = sorted({round(place) for place in np.linspace(0, len(names) - 1, wanted)})
        what = "layers" if by_layers else "heads"
        picker.notes = [note for note in picker.notes if not note.endswith(f"{what}, to keep the page small.")]
        picker.notes.append(f"Shown are {len(kept)} {what}, to keep the page small.")
        for arms in picker.views.values():
            for moments in arms.values():
                for moment, layers in moments.items():
                    moments[moment] = (
                        [layers[i] for i in kept if i < len(layers)]
                        if by_layers
                        else [[layer[i] for i in kept if i < len(layer)] for layer in layers]
                    )
        if by_layers:
            picker.layers = [picker.layers[i] for i in kept]
        else:
            picker.heads = [picker.heads[i] for i in kept]
            for arms in picker.captions.values():
                for moments in arms.values():
                    for moment, texts in moments.items():
                        moments[moment] = [texts[i] for i in kept]
    return picker


def _size(picker: Picker) -> int:
    return sum(
        len(picture or "")
        for arms in picker.views.values()
        for moments in arms.values()
        for layers in moments.values()
        for layer in layers
        for picture in layer
    )

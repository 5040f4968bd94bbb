"""The sections of the page that show one run per arm: attention, weight products, similarity."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors import safe_open

from comparison.report import depth, strips, words
from comparison.report.drawn import Drawing, Sheet, short
from comparison.report.material import Material
from comparison.report.panels import (
    DIVERGING,
    SEQUENTIAL,
    Picker,
    attention_maps,
    attention_picker,
    largest,
    product_picker,
)
from comparison.report.similarity import Similarity, similarity, similarity_figure
from comparison.report.start import run_products
from comparison.results.records import point_label
from structured_init.errors import StructuredInitError


@dataclass
class Shown:
    """A picker with what belongs to it.

    Attributes:
        picker: its pictures.
        note: what to know about them.
        drawings: figures beside it.
    """

    picker: Picker
    note: str
    drawings: list[Drawing] = field(default_factory=list)


def attention(material: Material, sheet: Sheet) -> Shown | None:
    """Return the attention maps of one run per arm; None where no run has any."""
    maps, profiles = attention_maps(material.shown)
    if not maps:
        return None
    layers = list(next(iter(next(iter(maps.values())).values())))
    top = largest(maps)
    means = {
        arm: {moment: [layer[0] for layer in of_layers.values()] for moment, of_layers in moments.items()}
        for arm, moments in maps.items()
    }
    figure = strips.strip_figure(
        means, material.looks, short(layers), "Attention, mean of the heads", SEQUENTIAL, lambda _: (0, top), power=0.5
    )
    sheet.add(figure, "attention", "Attention maps of every layer, mean of the heads, before and after training")
    picker = attention_picker(maps, profiles, short(layers))
    scale = "One colour scale for all pictures of a view, its square root, so that weak structure shows beside peaks."
    return Shown(picker, " ".join([_of_which(material), scale, *picker.notes]))


def products(material: Material, sheet: Sheet) -> Shown | None:
    """Return the weight products of one run per arm; None where no network can be built again or has attention."""
    corners, summaries, failures = {}, {}, []
    for arm, run in material.shown.items():
        try:
            found = run_products(run.folder)
        except StructuredInitError as error:
            failures.append(f"{arm} is not shown: {error}.")
            continue
        if found.problem:
            failures.append(f"{arm} {found.problem}.")
        if found.corners:
            corners[arm], summaries[arm] = found.corners, found.summaries
    if not corners:
        return None
    layers = list(next(iter(next(iter(corners.values())).values())))
    picker = product_picker(corners, short(layers))
    heads = {
        arm: {moment: [layer.query_key[0] for layer in of_layers.values()] for moment, of_layers in moments.items()}
        for arm, moments in corners.items()
    }

    def symmetric(values: list) -> tuple[float, float]:
        limit = max(float(np.quantile(np.abs(np.stack([value.numpy() for value in values])), 0.995)), 1e-9)
        return -limit, limit

    title = "$W_q W_k^\\top$ of the first head, each row of a block on its own scale"
    figure = strips.strip_figure(heads, material.looks, short(layers), title, DIVERGING, symmetric)
    sheet.add(figure, "weight_products", "Weight products of every layer's first head, before and after training")
    drawings = [
        sheet.add(
            depth.depth_figure(name, _over_depth(summaries, name), material.looks, short(layers)),
            f"weights_{name}",
            f"{words.plain(depth.TITLES.get(name, name))}, in every layer before and after training",
        )
        for name in next(iter(next(iter(next(iter(summaries.values())).values())).values()))
    ]
    own = "Upper left corners; red is positive, blue negative; each arm and moment has its own scale, named below it."
    text = [_of_which(material), own, *picker.notes, *failures]
    return Shown(picker, " ".join(text), drawings)


def representations(material: Material, sheet: Sheet) -> Similarity | None:
    """Return the CKA of all pairs of arms; None where no run kept representations."""
    blocks = sorted({name for run in material.complete for name in _blocks(run.folder)})
    names = dict(zip(blocks, short(blocks), strict=True))
    found = similarity(material.manifest["arms"], material.complete, names)
    if found is not None:
        text = "CKA between starts, before and after training, and of each before with after"
        sheet.add(similarity_figure(found, material.looks), "similarity", text)
    return found


def _blocks(folder: Path) -> list[str]:
    path = folder / "representations" / "before.safetensors"
    if not path.is_file():
        return []
    with safe_open(path, framework="pt") as file:
        return list(file.keys())


def _over_depth(summaries: dict, name: str) -> dict[str, dict[str, np.ndarray]]:
    return {
        arm: {
            moment: np.array([np.mean(layer[name]) for layer in of_layers.values()])
            for moment, of_layers in moments.items()
        }
        for arm, moments in summaries.items()
    }


def _of_which(material: Material) -> str:
    place = f" at {point_label(material.point)}" if len(material.points) > 1 else ""
    absent = [arm for arm in material.manifest["arms"] if arm not in material.shown]
    lacking = f" No complete run of it: {', '.join(absent)}." if absent else ""
    return f"Seed {material.seed}{place}.{lacking}"

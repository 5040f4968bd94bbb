"""CKA of all layers with all layers: between initializations, before and after training, and of each with itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from comparison.report.data import Place, ReportData
from comparison.report.pictures import mosaic, png
from comparison.report.registry import Html, Piece, note, register_panel, render, script_json
from comparison.report.theme import Drawing, Style, figure_settings, new_figure
from comparison.results.folder import Run
from structured_init.analysis.cka import alignment, hsic1_table
from structured_init.util.errors import StructuredInitError
from structured_init.util.files import read_tensors
from structured_init.util.names import short_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WHAT = (
    "Every small square compares all layers of one initialization with all layers of another, the first layer at the "
    "lower left. Above the diagonal: both before training. Below: both after. On the diagonal: an initialization "
    "before training (rows) with itself after (columns). Choose one to see it large."
)
TEXT = "CKA between initializations, before and after training, and of each before with after"
COLORS = "viridis"
MOST_SEEDS = 5
Moments = dict[str, dict[str, Tensor]]  # before and after → layer → Gram matrices


@register_panel("Similarity of representations", label="Similarity")
def similarity(data: ReportData) -> list[Piece] | None:
    """Return the CKA of all pairs of arms; None where no run kept representations."""
    files = [run.folder / "representations" / "before.safetensors" for run in data.complete]
    blocks = sorted({name for file in files if file.is_file() for name in read_tensors(file)})
    found = representations(data.manifest["arms"], data.complete, dict(zip(blocks, short_names(blocks), strict=True)))
    if found is None:
        return None
    how = (
        "Linear CKA with the unbiased minibatch estimator on the same validation samples, mean over the "
        f"seeds that both arms have (of {len(found.seeds)}), paired within a seed."
    )
    drawing = Drawing(similarity_figure(found, data.styles), "similarity", TEXT)
    return [WHAT, Html(_squares(data, found), drawings=[drawing]), note(how)]


def _squares(data: ReportData, found: Similarity) -> str:
    rows: list[list[dict[str, Any]]] = [[] for _ in found.arms]
    for i, cells in enumerate(found.cells):
        for j, cell in enumerate(cells):
            one, other = _moments(i, j)
            mean = "" if cell is None else f": mean {cell.mean():.2f}"
            picture = None if cell is None else png(np.clip(cell, 0, 1)[::-1], COLORS)  # the first layer below
            rows[i].append({"picture": picture, "title": f"{found.arms[i]} {one}, {found.arms[j]} {other}{mean}"})
    arms = [{"name": arm, "color": data.colors[arm]} for arm in found.arms]
    numbers = [[None if cell is None else np.round(cell, 3).tolist() for cell in row] for row in found.cells]
    known = {"arms": found.arms, "layers": found.layers, "cells": numbers}
    return render("similarity.html.j2", arms=arms, rows=rows, data=script_json(known))


def _moments(i: int, j: int) -> tuple[str, str]:
    """Return what a cell compares: of the row's arm, and of the column's."""
    return ("before", "after") if i == j else ("before", "before") if i < j else ("after", "after")


@dataclass(frozen=True)
class Similarity:
    """Every comparison of two arms, as a square of squares."""

    arms: list[str]  # rows and columns
    layers: list[str]  # names of the layers
    seeds: list[int]  # over which the values are averaged
    # [row][column] → values (layers of the row's arm, layers of the column's). Above the diagonal both are before
    # training, below both after; on it the rows are before and the columns after
    cells: list[list[np.ndarray | None]]


def representations(arms: Iterable[str], runs: Iterable[Run], layer_names: Mapping[str, str]) -> Similarity | None:
    """Return the CKA of all pairs of arms, averaged over the seeds that both have; None without representations."""
    kept = {}
    for run in runs:
        files = {moment: run.folder / "representations" / f"{moment}.safetensors" for moment in ("before", "after")}
        if all(file.is_file() for file in files.values()):
            kept[run.arm, run.seed] = files
    seeds = sorted({seed for _, seed in kept})[:MOST_SEEDS]
    grams = {
        (arm, seed): {moment: read_tensors(file) for moment, file in files.items()}
        for (arm, seed), files in kept.items()
        if seed in seeds
    }
    order = [arm for arm in arms if any((arm, seed) in grams for seed in seeds)]
    if not order:
        return None
    layers = max((layers for moments in grams.values() for layers in moments.values()), key=len)  # one may be deeper
    tables = [_alignments({arm: grams[arm, seed] for arm in order if (arm, seed) in grams}) for seed in seeds]
    cells: list[list[np.ndarray | None]] = [[] for _ in order]
    for i, row in enumerate(order):
        for j, column in enumerate(order):
            one, other = _moments(i, j)
            known = [each for table in tables if (each := table.get(((row, one), (column, other)))) is not None]
            cells[i].append(np.mean(known, axis=0) if known else None)
    return Similarity(order, [layer_names.get(layer, layer) for layer in layers], seeds, cells)


def similarity_figure(found: Similarity, styles: Mapping[str, Style]) -> Figure:
    """Draw the square of squares for a paper."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    count = len(found.arms)
    with figure_settings():
        longest = max(map(len, found.arms))
        above, left = 0.45 + 0.03 * longest, max(1.05, 0.1 + 0.06 * longest)  # for title and slanted names; for names
        cell = min(0.66, 9.0 / count)
        wide, tall = cell * count + left + 0.85, cell * count + 0.05 + above
        figure = new_figure(wide, tall, layout=None)
        axis = figure.add_axes((left / wide, 0.05 / tall, cell * count / wide, cell * count / tall))
        axis.grid(visible=False)
        axis.spines[:].set_visible(False)
        colors = ScalarMappable(Normalize(0, 1), COLORS)
        pictures = {
            (i, j): colors.to_rgba(values[::-1])  # the first layer below
            for i, row in enumerate(found.cells)
            for j, values in enumerate(row)
            if values is not None
        }
        image, *_ = mosaic(pictures, count, count)
        axis.imshow(image, interpolation="nearest", aspect="auto", extent=(0, count, count, 0))
        axis.set(xlim=(0, count), ylim=(count, 0), xticks=[])
        axis.set_yticks([i + 0.46 for i in range(count)], found.arms)
        for label, arm in zip(axis.get_yticklabels(), found.arms, strict=True):
            label.set(color=styles[arm].paper, fontsize=6.5)
        for j, arm in enumerate(found.arms):
            turned = {"rotation": 30, "ha": "left", "va": "bottom", "fontsize": 6.5}
            axis.text(j + 0.1, -0.05, arm, color=styles[arm].paper, **turned)
        beside = figure.add_axes((1 - 0.7 / wide, 0.3, 0.12 / wide, 0.4))
        figure.colorbar(colors, cax=beside, label="linear CKA").outline.set_visible(False)
        title = "Above the diagonal before training, below after;\non it, each arm before (rows) and after (columns)"
        figure.suptitle(title, x=0.01, y=1 - 0.06 / tall, ha="left", va="top", fontsize=6.5)
    return figure


def _alignments(grams: Mapping[str, Moments]) -> dict[tuple[Place, Place], np.ndarray]:
    """Return the CKA of all arms and moments of one seed: (arm, moment) twice → (layers, layers).

    Those of other samples, as a grid over the data has them, are not compared; nor is what diverged, which is like
    nothing, not unlike everything.
    """
    shapes: dict[tuple[int, ...], list[tuple[Place, list[Tensor]]]] = {}
    for arm, moments in grams.items():
        for moment, layers in moments.items():
            kernels = list(layers.values())
            if all(kernel.shape == kernels[0].shape and torch.isfinite(kernel).all() for kernel in kernels):
                shapes.setdefault(tuple(kernels[0].shape), []).append(((arm, moment), kernels))
    found = {}
    for known in shapes.values():
        try:
            between = hsic1_table(torch.stack([kernel for _, kernels in known for kernel in kernels]))
        except StructuredInitError:  # too few samples
            continue
        own = between.diagonal()
        values = np.nan_to_num(alignment(between, own[:, None].expand_as(between), own.expand_as(between)).numpy())
        ends = np.cumsum([0, *(len(kernels) for _, kernels in known)])
        for a, (one, _) in enumerate(known):
            for b, (other, _) in enumerate(known):
                found[one, other] = values[ends[a] : ends[a + 1], ends[b] : ends[b + 1]]
    return found

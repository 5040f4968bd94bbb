"""CKA of all layers with all layers: between initializations, before and after training, and of each with itself."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from comparison.report.pictures import png
from comparison.report.tensors import read_tensors
from comparison.report.theme import Style, figure_settings, new_figure
from comparison.results.run_record import RunRecord
from structured_init.analysis import cka_matrix
from structured_init.errors import StructuredInitError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = "viridis"
MOST_SEEDS = 5


@dataclass(frozen=True)
class Similarity:
    """Every comparison of two arms, as a square of squares.

    Attributes:
        arms: rows and columns.
        layers: names of the layers.
        seeds: over which the values are averaged.
        cells: [row][column] → values (layers of the row's arm, layers of the column's). Above the diagonal both are
            before training, below both after; on it the rows are before and the columns after.
    """

    arms: list[str]
    layers: list[str]
    seeds: list[int]
    cells: list[list[np.ndarray | None]]

    def pictures(self) -> list[list[str | None]]:
        """Return every cell as a small picture in base64, the first layer below, on the scale from 0 to 1."""
        return [
            [None if cell is None else png(np.clip(cell, 0, 1)[::-1], COLORS) for cell in row] for row in self.cells
        ]

    def to_json(self) -> str:
        """Return the numbers that the page's script reads."""
        numbers = [[None if cell is None else np.round(cell, 3).tolist() for cell in row] for row in self.cells]
        known = {"arms": self.arms, "layers": self.layers, "cells": numbers}
        return json.dumps(known, separators=(",", ":"))


def similarity(arms: Iterable[str], runs: Iterable[RunRecord], layer_names: Mapping[str, str]) -> Similarity | None:
    """Return the CKA of all pairs of arms, averaged over the seeds that both have; None without representations.

    Args:
        arms: in the order in which they stand.
        runs: complete runs.
        layer_names: block → short name.
    """
    grams = {(run.arm, run.seed): found for run in runs if (found := _grams(run))}
    seeds = sorted({seed for _, seed in grams})[:MOST_SEEDS]
    order = [arm for arm in arms if any((arm, seed) in grams for seed in seeds)]
    if not order:
        return None
    layers = list(next(iter(grams.values()))["before"])
    cells = [
        [_mean([_cell(grams, row, column, seed, i, j) for seed in seeds]) for j, column in enumerate(order)]
        for i, row in enumerate(order)
    ]
    return Similarity(order, [layer_names.get(layer, layer) for layer in layers], seeds, cells)


def similarity_figure(found: Similarity, styles: Mapping[str, Style]) -> Figure:
    """Draw the square of squares for a paper."""
    count = len(found.arms)
    with figure_settings():
        # By hand: laying out a hundred axes takes longer than drawing them.
        above = 0.35 + 0.03 * max(map(len, found.arms))  # for the title and the slanted names
        wide, tall = 0.66 * count + 1.9, 0.66 * count + 0.05 + above
        figure = new_figure(wide, tall, layout=None)
        box = {"left": 1.05 / wide, "right": 1 - 0.85 / wide, "bottom": 0.05 / tall, "top": 1 - above / tall}
        axes = figure.subplots(count, count, squeeze=False, gridspec_kw={**box, "wspace": 0.08, "hspace": 0.08})
        for i, row in enumerate(found.cells):
            for j, cell in enumerate(row):
                axis = axes[i, j]
                axis.set(xticks=[], yticks=[])
                axis.grid(visible=False)
                axis.spines[:].set_visible(False)
                if cell is not None:
                    image = axis.imshow(cell, vmin=0, vmax=1, cmap=COLORS, origin="lower", interpolation="nearest")
                if i == 0:
                    axis.set_title(
                        found.arms[j], color=styles[found.arms[j]].paper, loc="left", fontsize=6.5, rotation=30
                    )
                if j == 0:
                    color = styles[found.arms[i]].paper
                    label = {"rotation": 0, "ha": "right", "va": "center", "fontsize": 6.5}
                    axis.set_ylabel(found.arms[i], color=color, **label)
        beside = figure.add_axes((1 - 0.7 / wide, 0.3, 0.12 / wide, 0.4))
        figure.colorbar(image, cax=beside, label="linear CKA").outline.set_visible(False)
        title = "Above the diagonal before training, below after; on it, each arm before (rows) and after (columns)"
        figure.suptitle(title, x=0.01, y=1 - 0.06 / tall, ha="left", va="top", fontsize=6.5)
    return figure


def _grams(run: RunRecord) -> dict[str, dict[str, Tensor]] | None:
    files = {moment: run.folder / "representations" / f"{moment}.safetensors" for moment in ("before", "after")}
    if not all(file.is_file() for file in files.values()):
        return None
    return {moment: read_tensors(file) for moment, file in files.items()}


def _cell(
    grams: Mapping[tuple[str, int], dict[str, dict[str, Tensor]]], row: str, column: str, seed: int, i: int, j: int
) -> np.ndarray | None:
    if (row, seed) not in grams or (column, seed) not in grams:
        return None
    moments = ("before", "after") if i == j else ("before", "before") if i < j else ("after", "after")
    ours, theirs = grams[row, seed][moments[0]], grams[column, seed][moments[1]]
    if not all(torch.isfinite(gram).all() for gram in (*ours.values(), *theirs.values())):
        return None  # a run that diverged is like nothing, not unlike everything
    try:
        values = cka_matrix(ours, theirs)
    except StructuredInitError:  # of other samples: a grid over the data
        return None
    return np.nan_to_num(values.numpy())


def _mean(values: list[np.ndarray | None]) -> np.ndarray | None:
    known = [value for value in values if value is not None]
    return np.mean(known, axis=0) if known else None

"""Attention before and after training: the pictures that the runs drew, and a few numbers of all seeds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from comparison.report.data import MOMENTS, ReportData
from comparison.report.registry import Piece, explanation, register_panel
from comparison.report.theme import Drawing
from comparison.results.folder import Run, read_json
from comparison.results.tables import Cell, Table, number
from structured_init.analysis.cka import cka
from structured_init.util.files import read_tensors, refuse_endless

HOW = (
    "Maps average the probe’s samples: a row is a query, a column a key. Numbers are means over heads, layers and "
    "seeds, before → after training. Entropy: of a row, 1 where it is uniform. W_q W_kᵀ, W_v W_o: diagonals of the "
    "weight products. CKA: similarity of a block’s output after training to that before."
)
NUMBERS = {  # heading → file of a run and its quantity
    "distance": ("attention/statistics.json", "mean_distance"),
    "entropy": ("attention/statistics.json", "normalised_entropy"),
    "attention to itself": ("attention/statistics.json", "diagonal_mass"),
    "W_q W_kᵀ": ("weight_products/summary.json", "query_key_diagonal"),
    "W_v W_o": ("weight_products/summary.json", "value_output_diagonal"),
}


@register_panel("Attention")
def attention(data: ReportData) -> list[Piece] | None:
    """Return a picture of one run per arm, and the numbers of all; None where no run has any."""
    shown: list[Piece] = []
    for arm, run in data.shown.items():
        picture = run.folder / "attention" / "maps.png"
        if picture.is_file():
            refuse_endless(picture)
            text = f"Attention of {arm} before and after training, seed {run.seed}"
            shown.append(Drawing(picture, f"attention_{arm}", text))
    table = numbers_table(data)
    shown += [table] if len(table.columns) > 1 else []
    return [*shown, explanation(HOW)] if shown else None


def numbers_table(data: ReportData) -> Table:
    """Return a row per arm: quantities before and after training, averaged over heads, layers and seeds."""
    runs: dict[str, list[Run]] = {}
    for run in data.complete:
        runs.setdefault(run.arm, []).append(run)
    arms = [arm for arm in data.styles if arm in runs]
    columns = {"arm": [Cell(arm, arm=arm) for arm in arms]}
    for heading, (file, quantity) in NUMBERS.items():
        columns[heading] = [_before_and_after(runs[arm], file, quantity) for arm in arms]
    columns["CKA after with before"] = [_mean_cell([_similarity(run) for run in runs[arm]]) for arm in arms]
    kept = {heading: cells for heading, cells in columns.items() if any(cell.text for cell in cells)}
    return Table(list(kept), list(zip(*kept.values(), strict=True)))


def _before_and_after(runs: list[Run], file: str, quantity: str) -> Cell:
    found: dict[str, list[float]] = {moment: [] for moment in MOMENTS}
    for run in runs:
        written = read_json(run.folder / file) if (run.folder / file).is_file() else {}
        for moment, values in found.items():
            values.append(_mean_over_layers(written.get(moment, {}), quantity))
    before, after = (_mean_cell(values).text for values in found.values())
    return Cell(f"{before or '–'} → {after or '–'}" if before or after else "")


def _mean_over_layers(layers: Mapping[str, Mapping[str, Any]], quantity: str) -> float:
    """Return the mean of a quantity over layers and heads; null in JSON is no number, nor is what no layer has."""
    values = [np.ravel(np.array(layer[quantity], dtype=float)) for layer in layers.values() if quantity in layer]
    return _mean(np.concatenate(values)) if values else np.nan


def _similarity(run: Run) -> float:
    """Return the CKA of every block's output after training with itself before, the mean over blocks."""
    files = [Path(run.folder, "representations", f"{moment}.safetensors") for moment in MOMENTS]
    if not all(file.is_file() for file in files):
        return np.nan
    before, after = map(read_tensors, files)
    return _mean(np.array([float(cka(before[block], after[block])) for block in before if block in after]))


def _mean_cell(values: list[float]) -> Cell:
    mean = _mean(np.array(values))
    return Cell("" if np.isnan(mean) else number(mean, 2))


def _mean(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else np.nan

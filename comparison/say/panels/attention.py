"""Attention before and after training: the pictures that the runs drew, and a few numbers of all seeds."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from comparison.runs.folder import Run, read_json
from comparison.say.data import MOMENTS, ReportData
from comparison.say.registry import Piece, explanation, register_panel
from comparison.say.theme import Drawing
from comparison.tables import number
from structured_init.analysis import cka_matrix
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
CKA = "CKA after with before"
COLUMNS = [*(f"{name} {moment}" for name in NUMBERS for moment in MOMENTS), CKA]


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
    shown += [] if table.empty else [table]
    return [*shown, explanation(HOW)] if shown else None


def numbers_table(data: ReportData) -> pd.DataFrame:
    """Return a row per arm: quantities before → after training, averaged over heads, layers and seeds."""
    rows = pd.DataFrame([{"arm": run.arm, **_numbers(run)} for run in data.complete], columns=["arm", *COLUMNS])
    means = rows.groupby("arm").mean().dropna(axis=1, how="all")
    arms = [arm for arm in data.styles if arm in means.index]
    shown = means.loc[arms].map(lambda mean: "–" if math.isnan(mean) else number(mean, 2))
    table = pd.DataFrame(index=pd.Index(arms, name="arm"))
    for name in NUMBERS:
        if f"{name} before" in shown:
            table[name] = shown[f"{name} before"] + " → " + shown.get(f"{name} after", "–")
    if CKA in shown:
        table[CKA] = shown[CKA]
    return table


def _numbers(run: Run) -> dict[str, float]:
    """Return what a run wrote of its attention: means over heads and layers, NaN of what it did not write."""
    found = {}
    for name, (file, quantity) in NUMBERS.items():
        written = read_json(run.folder / file) if (run.folder / file).is_file() else {}
        for moment in MOMENTS:
            layers = pd.DataFrame.from_dict(written.get(moment, {}), orient="index")
            if quantity in layers:  # a number of every head, or one
                found[f"{name} {moment}"] = layers[quantity].explode().astype(float).mean()
    before, after = (Path(run.folder, "representations", f"{moment}.safetensors") for moment in MOMENTS)
    if before.is_file() and after.is_file():
        found[CKA] = float(cka_matrix(read_tensors(before), read_tensors(after)).diagonal().mean())
    return found

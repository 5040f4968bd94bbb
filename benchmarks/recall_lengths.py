"""The picture of the README: exact match of recall by the length of the text, from the committed runs.

python -m benchmarks.recall_lengths --output benchmarks/results/modern/recall_lengths.png
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from structured_init.util.files import replacing

RUNS = Path(__file__).parent / "results" / "modern"
LENGTHS = (128, 256, 512)  # the first is that of training
ARMS = {
    "induction": ("the circuit, written before training", "#0b8a6a"),
    "short_convolution": ("a short convolution, built in", "#1f6fb4"),
    "canon": ("Canon layers, built in", "#c65a00"),
    "default": ("the usual initialization", "#7d8590"),
}


def exact_matches(arm: str) -> list[tuple[float, float]]:
    """Return mean and half width of the 95 % t interval of an arm's exact matches at each length."""
    known = json.loads((RUNS / "recall_16_own.json").read_text(encoding="utf-8"))
    own = pd.DataFrame(run["metrics"] for run in known["runs"]["llama"] if run["conv"] == arm)
    rows = [own[f"test/exact_match_{length}"] for length in LENGTHS]
    return [(row.mean(), stats.t.ppf(0.975, len(row) - 1) * row.sem()) for row in rows]


def figure() -> Figure:
    """Return a line for each arm."""
    drawn = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes = drawn.subplots()
    for arm, (label, color) in ARMS.items():
        means, halves = zip(*exact_matches(arm), strict=True)
        axes.errorbar(range(len(LENGTHS)), means, halves, color=color, marker="o", capsize=3, lw=2, label=label)
    axes.set_xticks(range(len(LENGTHS)), [f"{length} tokens" for length in LENGTHS])
    axes.set(ylim=(-0.05, 1.05), ylabel="exact match", title="Recall of 16 pairs by a Llama of two layers, under Muon")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(0.07, 0.4))
    return drawn


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description="Draw the exact match of recall by the length of the text.")
    parser.add_argument("--output", type=Path, required=True)
    with replacing(parser.parse_args(arguments).output) as temporary:
        figure().savefig(temporary, dpi=100, format="png")


if __name__ == "__main__":
    main()

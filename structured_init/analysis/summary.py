"""All statistics of one layer, and tables of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from structured_init.analysis import statistics

# What each column means, for tables and figure titles.
STATISTICS: dict[str, str] = {
    "mean_distance": "mean attention distance (patches)",
    "mean_distance_with_prefix": "mean attention distance, class token's share not given back (patches)",
    "entropy": "entropy of a row (nats)",
    "normalised_entropy": "entropy of a row / log N",
    "diagonal_mass": "attention to itself",
    "diagonality": "diagonality",
    "impulse_mass": "attention on the best offset",
    "argmax_accuracy": "queries that look most at the best offset",
    "effective_rank": "effective rank",
    "profile_energy": "share explained by the offset profile",
}


def summarize(
    maps: statistics.Maps,
    grid: Sequence[int] | None = None,
    prefix_tokens: int = 0,
    offsets: Tensor | None = None,
    window: int = 3,
) -> dict[str, list]:
    """Return every statistic of a layer, per head, as plain lists.

    Args:
        maps: attention maps (B, H, N, N).
        grid: rows and columns of patches; a sequence (one row of all tokens) when None.
        prefix_tokens: class and register tokens before the patches; ignored without a grid.
        offsets: where each head's impulse should be, (H, 2) as (rows, columns); the best in the window when None.
        window: side of the neighbourhood in which the best offset is looked for.

    Returns:
        The keys of ``STATISTICS``, each a list over heads, and ``offset``, a list of [rows, columns].
    """
    if grid is None:
        grid, prefix_tokens = (1, maps.shape[-1]), 0
    if offsets is None:
        offsets = statistics.best_offset(maps, grid, prefix_tokens, window)
    place = (grid, prefix_tokens)
    numbers = {
        "mean_distance": statistics.mean_distance(maps, *place),
        "mean_distance_with_prefix": statistics.mean_distance(maps, *place, renormalise=False),
        "entropy": statistics.entropy(maps),
        "normalised_entropy": statistics.entropy(maps, normalised=True),
        "diagonal_mass": statistics.diagonal_mass(maps, prefix_tokens),
        "diagonality": statistics.diagonality(maps, *place),
        "impulse_mass": statistics.impulse_mass(maps, offsets, *place),
        "argmax_accuracy": statistics.argmax_accuracy(maps, offsets, *place),
        "effective_rank": statistics.effective_rank(maps),
        "profile_energy": statistics.profile_energy(maps, *place),
    }
    return {name: [round(v, 6) for v in values.tolist()] for name, values in numbers.items()} | {
        "offset": torch.as_tensor(offsets).tolist()
    }


def to_csv(phases: Mapping[str, Mapping[str, Mapping[str, list]]]) -> str:
    """Write phase → layer → statistic → heads as a long table, one row per phase, layer and head."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["phase", "layer", "head", *STATISTICS, "offset_row", "offset_column"])
    for phase, layers in phases.items():
        for layer, values in layers.items():
            for head, offset in enumerate(values["offset"]):
                writer.writerow([phase, layer, head, *(values[name][head] for name in STATISTICS), *offset])
    return text.getvalue()

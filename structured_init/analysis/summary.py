"""All statistics of one layer, and tables of them."""

from __future__ import annotations

import csv
import io
import math
import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from structured_init.analysis import statistics
from structured_init.analysis.heads import HEAD_SCORES
from structured_init.hosts.watched import unpadded
from structured_init.util.arguments import check_grid

# What each column means, for tables and figure titles.
STATISTICS: dict[str, str] = {
    "mean_distance": "mean attention distance (patches or tokens)",
    "entropy": "entropy of a row (nats)",
    "normalised_entropy": "entropy of a row / log N",
    "diagonal_mass": "attention to itself",
    "diagonality": "diagonality",
    "impulse_mass": "attention on the best offset",
    "argmax_accuracy": "queries that look most at the best offset",
    "effective_rank": "effective rank",
    "profile_energy": "share explained by the offset profile",
    "far_mass": "attention beyond a radius of 3 patches or tokens",
}


def summarize(
    maps: statistics.AnyMaps,
    grid: Sequence[int] | None = None,
    prefix_tokens: int = 0,
    window: int = 3,
) -> dict[str, list]:
    """Return every statistic of a layer, per head, as plain lists.

    Args:
        maps: attention maps (B, H, queries, keys). Tokens that no query of any head looks at are padding, left out.
        grid: rows and columns of patches; a sequence (one row of all tokens) when None.
        prefix_tokens: class and register tokens before the patches; ignored without a grid.
        window: odd side of the neighbourhood in which the best offset is looked for; on one row, offsets up to half the
            sequence are.

    Returns:
        The keys of ``STATISTICS``, each a list over heads, and ``offset``, a list of [rows, columns]. Where queries and
        keys are not the same tokens, as in cross-attention, all but entropies and rank are NaN.

    Raises:
        StructuredInitError: the maps have other axes.
    """
    check_grid("summarize", grid)
    _warn_of_no_shares(maps)
    if maps.shape[-1] != maps.shape[-2]:
        known = {
            "entropy": statistics.entropy(maps),
            "normalised_entropy": statistics.entropy(maps, normalised=True),
            "effective_rank": statistics.effective_rank(maps),
        }
        absent = torch.full_like(known["entropy"], math.nan)
        return _rounded(dict.fromkeys(STATISTICS, absent) | known, absent[:, None].expand(-1, 2))
    if grid is None:
        grid, prefix_tokens = (1, maps.shape[-1]), 0
    if grid[0] == 1:  # half a sequence either way: of an offset beyond it, few tokens have a target
        window = 2 * (int(unpadded(maps).sum(dim=-1).max()) // 2) + 1
    place = (grid, prefix_tokens)
    offsets = statistics.best_offset(maps, *place, window)
    numbers = {
        "mean_distance": statistics.mean_distance(maps, *place),
        "entropy": statistics.entropy(maps),
        "normalised_entropy": statistics.entropy(maps, normalised=True),
        "diagonal_mass": statistics.diagonal_mass(maps, prefix_tokens),
        "diagonality": statistics.diagonality(maps, *place),
        "impulse_mass": statistics.impulse_mass(maps, offsets, *place),
        "argmax_accuracy": statistics.argmax_accuracy(maps, offsets, *place),
        "effective_rank": statistics.effective_rank(maps),
        "profile_energy": statistics.profile_energy(maps, *place),
        "far_mass": statistics.far_mass(maps, *place),
    }
    return _rounded(numbers, offsets)


def _warn_of_no_shares(maps: statistics.AnyMaps) -> None:
    finite = statistics.shares(maps)[maps.isfinite().all(-1)]
    if finite.isnan().any() or (finite.sum(-1) > 1.5).any():
        warnings.warn(
            "summarize: rows of these maps are no shares of attention: a softmax is missing, or the host mixes its "
            "heads; what is said of shares is nan for a head with negative entries",
            stacklevel=3,
        )


def to_csv(phases: Mapping[str, Mapping[str, Mapping[str, list]]]) -> str:
    """Write phase → layer → statistic → heads as a long table, one row per phase, layer and head.

    The columns are those of ``STATISTICS``, and of ``HEAD_SCORES`` where any layer has them.
    """
    rows = []
    for phase, layers in phases.items():
        for layer, values in layers.items():
            for head, (down, across) in enumerate(values["offset"]):
                place = {"phase": phase, "layer": layer, "head": head, "offset_row": down, "offset_column": across}
                rows.append({name: heads[head] for name, heads in values.items()} | place)
    scores = [name for name in HEAD_SCORES if any(name in row for row in rows)]
    columns = ["phase", "layer", "head", *STATISTICS, *scores, "offset_row", "offset_column"]
    text = io.StringIO()
    # A resumed run may bring statistics from before a column was added.
    writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _rounded(numbers: Mapping[str, Tensor], offsets: Tensor) -> dict[str, list]:
    return {name: [round(v, 6) for v in values.tolist()] for name, values in numbers.items()} | {
        "offset": torch.as_tensor(offsets, device="cpu").tolist()
    }

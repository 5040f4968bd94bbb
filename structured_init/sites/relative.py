"""Relative positions that are added to the logits: a table with an entry for every offset and head.

Letters: H heads, R rows of the table, N tokens of a grid (Gy, Gx) or of a sequence. An offset (y, x) leads from a query
to the key y rows above and x columns to the left of it; in a sequence y is 0 and x counts the tokens before it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from structured_init.names import named_plain_modules
from structured_init.plan import Weights
from structured_init.sites.attention import AttentionSite

SHARED = ("rel_pos_bias", "shared_position_bias", "relative_position_bias", "rel_pos")  # beside or above the attention


@dataclass(frozen=True)
class RelativeBias:
    """The bias table of one attention layer.

    Attributes:
        table: the host's parameter (R, H).
        rows: the row of each offset: (n, 2) → (n,). Offsets that the tokens do not have are the caller's mistake.
        grid: (Gy, Gx) of the window or image, or ``None`` for a sequence of any length.
        shared: whether other layers read the same table.
    """

    table: Tensor
    rows: Callable[[Int[Tensor, "offsets 2"]], Int[Tensor, " offsets"]]
    grid: tuple[int, int] | None = None
    shared: bool = False

    def get(self, weights: Weights) -> Float[Tensor, "rows heads"]:
        """The table as planned so far, as a copy."""
        return weights.read(self.table).clone()

    def set(self, weights: Weights, head: int, offset: tuple[int, int], value: float, by: str) -> None:
        """Write one head's entry for one offset."""
        weights.edit(self.table, by)[self.rows(torch.tensor([offset]))[0], head] = value


def relative_bias(site: AttentionSite, weights: Weights) -> RelativeBias | None:
    """Find the table whose entries an attention layer adds to its logits, by what it is, not by its class.

    Either an ``nn.Embedding`` called ``relative_attention_bias`` with a function from offsets to buckets (T5 and its
    kin), or a parameter ``relative_position_bias_table`` (R, H) with an index from pairs of tokens (Swin, BEiT): in the
    module itself, in a child of it or of the block, or of a module further out, where all layers share it.
    """
    modules = dict(named_plain_modules(weights.model))
    for name, module in _around(site.name, modules):
        outside = site.name != name and site.name.rpartition(".")[0] != name
        found = _buckets(module) or _indexed(module, shared=outside)
        if found is not None and found.table.shape[1] == site.num_heads:
            return found
    return None


def _around(name: str, modules: dict[str, nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """The module, its children, and what stands beside it or beside a module around it under a known name."""
    yield name, modules[name]
    yield from ((name, child) for _, child in modules[name].named_children())
    while name:
        name = name.rpartition(".")[0]
        yield from ((name, child) for key, child in modules[name].named_children() if key in SHARED)


def _buckets(module: nn.Module) -> RelativeBias | None:
    """T5: near offsets have a bucket each, far ones share some; the first layer's table serves all layers.

    umT5 has a table in every layer, and its function knows its own settings.
    """
    table, bucket = getattr(module, "relative_attention_bias", None), getattr(module, "_relative_position_bucket", None)
    if not isinstance(table, nn.Embedding) or bucket is None:
        return None
    settings = {
        "bidirectional": not module.is_decoder,
        "num_buckets": module.relative_attention_num_buckets,
        "max_distance": module.relative_attention_max_distance,
    }
    shared = "bidirectional" in inspect.signature(bucket).parameters
    return RelativeBias(
        table.weight, lambda offsets: bucket(-offsets[:, 1], **(settings if shared else {})), shared=shared
    )


def _indexed(module: nn.Module, *, shared: bool) -> RelativeBias | None:
    """Swin and BEiT: ``relative_position_index`` (N, N) names a row for each pair of tokens."""
    table, grid = getattr(module, "relative_position_bias_table", None), getattr(module, "window_size", None)
    if not isinstance(table, Tensor) or grid is None:
        return None
    grid = (grid[0], grid[1])
    index = getattr(module, "relative_position_index", None)
    if index is None:
        index = module.generate_relative_position_index(grid)
    size = round(index.numel() ** 0.5)
    prefix = size - grid[0] * grid[1]

    def rows(offsets: Tensor) -> Tensor:
        query, key = offsets.clamp(min=0), (-offsets).clamp(min=0)
        flat = (prefix + place[:, 0] * grid[1] + place[:, 1] for place in (query, key))
        return index.detach().cpu().view(size, size)[tuple(flat)]

    return RelativeBias(table, rows, grid, shared)

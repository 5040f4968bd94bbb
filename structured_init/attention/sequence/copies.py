"""Copies of what heads see, in subspaces of their own: W_v = V, W_o = size · Oᵀ.

Letters: D embed_dim, k width of a value, C heads that copy. V and O (D, k) have orthonormal columns.
"""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from structured_init.attention.sequence.heads import Heads
from structured_init.util.linalg import random_orthogonal

Subspaces = tuple[list[Float64[Tensor, "D k"]], list[Float64[Tensor, "D k"]]]


def draw_subspaces(
    embed_dim: int, width: int, copies: int, free: Int[Tensor, " free"], *, generator: torch.Generator
) -> Subspaces:
    """Return V of each head that copies, which it reads, and O, into which it writes.

    All are orthogonal while there is room; beyond, they are drawn anew. In ``free`` coordinates, those without
    positions, V lies where they suffice, and O too, or else beside them.
    """
    everywhere = torch.arange(embed_dim)
    beside = everywhere[~torch.isin(everywhere, free)]
    needed = width * copies
    if needed <= len(free) < 2 * needed and needed <= len(beside):
        read, write = (_draw_within(place, embed_dim, width, copies, generator) for place in (free, beside))
        return read, write
    place = free if 2 * needed <= len(free) else everywhere
    blocks = _draw_within(place, embed_dim, width, 2 * copies, generator)
    return blocks[:copies], blocks[copies:]


def _draw_within(
    coordinates: Int[Tensor, " c"], embed_dim: int, width: int, blocks: int, generator: torch.Generator
) -> list[Float64[Tensor, "D k"]]:
    """Draw blocks of orthonormal columns that are zero but in some coordinates."""
    room = max(len(coordinates) // width, 1)
    drawn: list[Tensor] = []
    while len(drawn) < blocks:
        columns = torch.zeros(embed_dim, width * min(room, blocks - len(drawn)), dtype=torch.float64)
        columns[coordinates] = random_orthogonal(len(coordinates), columns.shape[1], generator=generator)
        drawn += columns.split(width, dim=1)
    return drawn


def write_values(heads: Heads) -> Subspaces:
    """Write W_v = V of the heads that look at offsets, each with a value of its own, and W_o = 0; return V and O.

    What is seen has mean square 1 after the norm.
    """
    layer, site = heads.layer, heads.site.by("PreviousToken: value_output")
    value, output = site.value.double(), site.output.double()
    draw, width = layer.draw("subspaces"), value.shape[-1]
    read, write = draw_subspaces(site.embed_dim, width, len(layer.looking), heads.free, generator=draw)
    for place, head in enumerate(layer.looking):
        value[head // layer.group] = heads.through_norm(read[place])
        output[head] = 0.0
    site.value, site.output = value, output
    site.note_value_output()
    return read, write


def write_outputs(heads: Heads, write: list[Float64[Tensor, "D k"]], size: float) -> None:
    """Write W_o = size · Oᵀ: with the size of the stream the copy is as large, where it is, as the stream is."""
    site = heads.site.by("PreviousToken: value_output")
    output = site.output.double()
    for head, block in zip(heads.layer.looking, write, strict=True):
        output[head] = size * block.mT
    site.output = output

"""Looking at an offset through a table of biases: its entry is raised until the head looks there.

Letters: D embed_dim, k head_dim, N tokens, Q queries.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from structured_init.attention.sequence.share import Share, last_queries, mean_share, visible


def places(size: tuple[int, int]) -> Int[Tensor, "tokens 2"]:
    """Row and column of every token of a grid; of a sequence (1, N) the row is 0."""
    return torch.cartesian_prod(torch.arange(size[0]), torch.arange(size[1])).view(-1, 2)


def share_of_attention(
    bias: Float[Tensor, "queries tokens"],
    raised: Float[Tensor, "queries tokens"],
    content: Float[Tensor, "queries tokens"],
    queries: Int[Tensor, " queries"],
    targets: Int[Tensor, " queries"],
    *,
    causal: bool,
) -> Share:
    """Return which share of attention lies on the offset, as a function of its entry in the table.

    Args:
        bias: what the table adds where its entry for the offset is zero.
        raised: 1 where that entry is added, 0 elsewhere; far offsets share entries in some hosts.
        content: logits of what tokens hold, of the host's queries and keys.
        queries: the tokens that ask.
        targets: the tokens at the offset from them.
        causal: whether later tokens are hidden.
    """
    seen, base = visible(queries, bias.shape[1], causal=causal), bias + content
    return lambda entry: mean_share(base + entry * raised, targets, seen)


def asking(size: tuple[int, int], offset: tuple[int, int]) -> tuple[Int[Tensor, " queries"], Int[Tensor, " queries"]]:
    """Return the tokens that have one at the offset, at most as many as are measured, and those at the offset."""
    if size[0] == 1:
        queries = last_queries(size[1], offset[1])
        return queries, queries - offset[1]
    there = places(size) - torch.tensor(offset)
    inside = ((there >= 0) & (there < torch.tensor(size))).all(dim=1)
    queries = inside.nonzero()[:, 0]
    return queries, there[queries, 0] * size[1] + there[queries, 1]

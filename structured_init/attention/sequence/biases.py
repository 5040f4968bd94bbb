"""Looking at an offset through what is added to logits: an entry of a table that is raised, or the slopes of ALiBi.

Letters: D embed_dim, k head_dim, N tokens, Q queries.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Int
from torch import Tensor

from structured_init.attention.sequence.heads import (
    Layer,
    Outcome,
    Share,
    last_queries,
    least_strength,
    mean_share,
    normed,
    visible,
    write_product,
)
from structured_init.linalg import random_orthogonal


def through_relative(layer: Layer) -> Outcome:
    """Raise each head's entry for its offset; queries and keys stay the host's."""
    table = layer.positions.relative
    assert table is not None
    where = places(layer.size)
    queries_of, keys_of = layer.content(biased=True)
    entries, found = table.get(layer.weights).double(), {}

    def share(head: int, length: int) -> Share:
        offset = layer.offsets[head]
        queries, targets = asking(layer.size if length == layer.length else (1, length), offset)
        rows = table.rows((where[queries][:, None] - where[None, :length]).flatten(0, 1)).view(len(queries), -1)
        raised = rows == table.rows(torch.tensor([offset]))
        bias = entries[:, head][rows].masked_fill(raised, 0.0)
        query, key = (normed(layer, each) for each in (queries_of[head], keys_of[head // layer.group][:length]))
        seen = visible(queries, length, causal=layer.causal)
        return _share(bias + layer.site.scale * query[queries] @ key.mT, raised.double(), targets, seen)

    for head, _, offset in layer.heads:
        found[head] = least_strength(share(head, layer.length), layer.target)
        table.set(layer.weights, head, offset, found[head].strength, "PreviousToken: relative positions")
    how = "a table of relative positions" + (", which other layers read as well" if table.shared else "")
    predicted = lambda head, length: share(head, length)(found[head].strength)  # noqa: E731
    return Outcome(found, predicted, how)


def through_alibi(layer: Layer) -> Outcome:
    """Keep tokens from looking at themselves, W_q W_kᵀ = −β V Vᵀ, so that the nearest other one, before, is first."""
    site, found = layer.site, layer.positions.alibi
    assert found is not None
    reached, width = {}, site.head_dim

    def share(head: int, length: int) -> Share:
        queries, tokens = last_queries(length, 1), torch.arange(length)
        content = torch.randn(length, width, dtype=torch.float64, generator=layer.draw(f"content {head}"))
        distant = -found.slopes[head] * (queries[:, None] - tokens)
        seen = visible(queries, length, causal=True)
        return _share(distant, -(content[queries] @ content.mT), queries - 1, seen)

    for head, _, _ in layer.heads:
        reached[head] = least_strength(share(head, layer.length), layer.target, sufficient=0.97)  # the slope's bound
    strengths = {head: each.strength / site.scale for head, each in reached.items()}

    def directions(key: int) -> Tensor:
        return random_orthogonal(site.embed_dim, width, generator=layer.draw(f"directions {key}"))

    write_product(layer, strengths, lambda _, key, offset: -directions(key), directions)
    slopes = ", ".join(f"{found.slopes[head].item():.2g}" for head, _, _ in layer.heads)
    # 1 − e^(−slope): what the first of geometrically falling weights has of their sum.
    most = ", ".join(f"{1 - math.exp(-found.slopes[head].item()):.2f}" for head in reached)
    how = f"ALiBi: a slope of {slopes}, which the host computes, gives at most {most}"
    predicted = lambda head, length: share(head, length)(reached[head].strength)  # noqa: E731
    return Outcome(reached, predicted, how)


def _share(base: Tensor, raised: Tensor, targets: Tensor, seen: Tensor) -> Share:
    """Return the share of attention on the targets as a function of how often ``raised`` is added to the logits."""
    return lambda strength: mean_share(base + strength * raised, targets, seen)


def places(size: tuple[int, int]) -> Int[Tensor, "tokens 2"]:
    """Row and column of every token of a grid; of a sequence (1, N) the row is 0."""
    return torch.cartesian_prod(torch.arange(size[0]), torch.arange(size[1])).view(-1, 2)


def asking(size: tuple[int, int], offset: tuple[int, int]) -> tuple[Int[Tensor, " queries"], Int[Tensor, " queries"]]:
    """Return the tokens that have one at the offset, at most as many as are measured, and those at the offset."""
    if size[0] == 1:
        queries = last_queries(size[1], offset[1])
        return queries, queries - offset[1]
    there = places(size) - torch.tensor(offset)
    inside = ((there >= 0) & (there < torch.tensor(size))).all(dim=1)
    queries = inside.nonzero()[:, 0]
    return queries, there[queries, 0] * size[1] + there[queries, 1]

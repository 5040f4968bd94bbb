"""The second half of induction: heads that find the token behind an earlier occurrence of the present one.

Letters: B samples, N tokens, D embed_dim, k head_dim, v value width, c coordinates of a head that match.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from structured_init.attention.sequence.job import Job
from structured_init.attention.sequence.matrices import normed
from structured_init.attention.sequence.recorded import Recorded
from structured_init.attention.sequence.rotary import turn
from structured_init.attention.sequence.share import Share, mean_share, visible

SLOW = 1.0  # radians by which a pair that matches may be turned over the whole context


class Match(NamedTuple):
    """W_q and W_k (D, k) of unit strength, in what attention reads after its norm."""

    query: Float64[Tensor, "D k"]
    key: Float64[Tensor, "D k"]


def matching_coordinates(job: Job) -> Int[Tensor, " c"]:
    """The coordinates of a head that can match tokens over all distances, the best first.

    All of them, but under rotary positions those of no pair, and of pairs that turn by less than ``SLOW`` over the
    context, the slowest first; where there are fewer than four, those of the two slowest pairs.
    """
    rotary, head_dim = job.positions.rotary, job.site.head_dim
    if rotary is None:
        return torch.arange(head_dim)
    slow = rotary.frequencies * job.length < SLOW
    order = rotary.frequencies.argsort()[: max(int(slow.sum()), 2)]
    unturned = torch.ones(head_dim, dtype=torch.bool)
    unturned[rotary.pairs.flatten()] = False
    return torch.cat([unturned.nonzero()[:, 0], rotary.pairs[order].flatten()])


def matched(
    job: Job,
    seen: Recorded,
    read: Float64[Tensor, "D v"],
    write: Float64[Tensor, "v D"],
    coordinates: Int[Tensor, " c"],
) -> Match:
    """Return queries and keys that hold what a head read, V, against where it wrote, O: W_q = V R and W_k = Oᵀ R.

    R (v, c) has orthonormal columns beside the means of x̂ V and x̂ Oᵀ over all tokens. What is common to all tokens,
    such as a direction that was added to their embeddings and what the network answers to it, would be the largest part
    of queries and keys, and tell nothing.

    Args:
        job: the layer that matches.
        seen: the pass.
        read: V, of the head that copies.
        write: O, of the head that copies.
        coordinates: of the head that match.
    """
    one, other = job.through_norm(read), job.through_norm(write.mT)
    means = torch.stack([(seen.read @ each).mean(dim=(0, 1)) for each in (one, other)], dim=1)
    beside = torch.linalg.qr(torch.cat([means, torch.eye(len(means), dtype=means.dtype)], dim=1)).Q[:, 2:]
    count = min(len(coordinates), beside.shape[1])
    match = Match(*torch.zeros(2, job.site.embed_dim, job.site.head_dim, dtype=torch.float64))
    for weight, subspace in ((match.query, one), (match.key, other)):
        weight[:, coordinates[:count]] = subspace @ beside[:, :count]
    return match


def share_of_matches(job: Job, seen: Recorded, match: Match, falling: Tensor | None) -> Share:
    """Return which share of attention a token puts on what followed it before, as a function of the head's strength.

    Of what was recorded, the last half of the tokens are asked, where the same one came before.

    Args:
        job: the layer that matches.
        seen: the pass.
        match: queries and keys of unit strength.
        falling: what positions add to its logits (N, N), or ``None``.
    """
    length = seen.read.shape[1]
    tokens = torch.arange(length)
    maps = []
    for sample, places in zip(seen.read, seen.other, strict=True):
        query, key = (normed(job, sample @ each) for each in match)
        if job.positions.rotary is not None:
            query, key = (turn(each, tokens, job.positions.rotary) for each in (query, key))
        queries = tokens[(places < tokens - 1) & (tokens >= length // 2)]
        logits = query[queries] @ key.mT
        added = 0.0 if falling is None else falling[queries]
        maps.append((logits, places[queries] + 1, visible(queries, length, causal=True), added))

    def share(strength: float) -> float:
        strength = job.site.scale if job.site.layout.query_key_norm else strength  # which norms would take out
        shares = [mean_share(strength * logits + added, *where) for logits, *where, added in maps]
        return sum(shares) / len(shares)

    return share

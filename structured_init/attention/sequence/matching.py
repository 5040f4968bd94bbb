"""The second half of induction: heads that find the token behind an earlier occurrence of the present one.

Letters: D embed_dim, k head_dim, c coordinates of a head that match, N tokens, L = N/2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from structured_init.attention.sequence.job import Job
from structured_init.attention.sequence.matrices import normed
from structured_init.attention.sequence.rotary import turn
from structured_init.attention.sequence.share import QUERIES, Share, mean_share, visible

SLOW = 1.0  # radians by which a pair that matches may be turned over the whole context


@dataclass(frozen=True)
class Copied:
    """What a previous-token head has put into the stream.

    Attributes:
        read: V (D, k), with orthonormal columns: what it takes from the token before.
        write: O (k, D), with orthonormal rows: where it puts it.
        size: of the copy in a coordinate of O, over the root mean square of the stream.
        content: root mean square of content in what it reads, the rest being positions.
    """

    read: Float64[Tensor, "D k"]
    write: Float64[Tensor, "k D"]
    size: float
    content: float


def matching_coordinates(job: Job) -> Int[Tensor, " c"]:
    """The coordinates of a head that can match tokens over all distances.

    All of them, but under rotary positions those of no pair, and of pairs that turn by less than ``SLOW`` over the
    context; where there are fewer than four, those of the two slowest pairs.
    """
    rotary, head_dim = job.positions.rotary, job.site.head_dim
    if rotary is None:
        return torch.arange(head_dim)
    slow = rotary.frequencies * job.length < SLOW
    if int(slow.sum()) < 2:
        slow[-2:] = True
    unturned = torch.ones(head_dim, dtype=torch.bool)
    unturned[rotary.pairs.flatten()] = False
    return torch.cat([rotary.pairs[slow].flatten(), unturned.nonzero()[:, 0]]).sort().values


def repeated(length: int, width: int, *, generator: torch.Generator) -> Float64[Tensor, "tokens width"]:
    """Draw L unrelated contents and repeat them: (N, width), of mean square 1."""
    half = torch.randn((length + 1) // 2, width, dtype=torch.float64, generator=generator)
    return half.repeat(2, 1)[:length]


def share_of_matches(
    job: Job,
    copied: Copied,
    coordinates: Int[Tensor, " c"],
    biases: Float64[Tensor, "tokens tokens"] | None,
    *,
    generator: torch.Generator,
) -> Share:
    """Return which share of attention a token puts on what followed it before, as a function of the head's strength.

    Of a random sequence that comes twice, tokens of the second half are asked. In V and O, what a token holds of
    content and of its position is drawn; the copy in O is that of the token before, as large as it was written.

    Args:
        job: the layer that matches.
        copied: by the layer before.
        coordinates: of the head that match.
        biases: what positions add to its logits, or ``None``.
        generator: draws content and positions.
    """
    length, width = job.length, len(coordinates)

    def stream() -> Tensor:
        places = torch.randn(length, width, dtype=torch.float64, generator=generator)
        return copied.content * repeated(length, width, generator=generator) + math.sqrt(1 - copied.content**2) * places

    read, beside = stream(), stream()  # in V, and what O holds of the token itself
    grown = math.sqrt(1 + copied.size**2 * job.site.head_dim / job.site.embed_dim)
    before = torch.cat([torch.zeros_like(read[:1]), read[:-1]])
    query, key = torch.zeros(2, length, job.site.head_dim, dtype=torch.float64)
    query[:, coordinates] = read / grown
    key[:, coordinates] = (beside + copied.size * before) / grown
    tokens = torch.arange(length)
    half = (length + 1) // 2
    queries = torch.linspace(half, length - 1, min(QUERIES, length - half)).long()
    query, key = (normed(job, each) for each in (query, key))
    if job.positions.rotary is not None:
        query, key = (turn(each, tokens, job.positions.rotary) for each in (query, key))
    logits = query[queries] @ key.mT
    seen: Bool[Tensor, "queries tokens"] = visible(queries, length, causal=True)
    targets, added = queries - half + 1, 0.0 if biases is None else biases[queries]
    return lambda strength: mean_share(strength * logits + added, targets, seen)

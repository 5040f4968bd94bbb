"""How much of its attention a head puts on an offset, and how strong its logits must be for a given share.

Letters: Q queries, N tokens. An offset of 1 is the token before, −1 the token behind.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

QUERIES = 96  # measured at the end of the context, where there is most to choose from
STEPS = 40  # of the search: strengths 2^(−8) to 2^(12) in steps of √2
BISECTIONS = 12
SUFFICIENT = 0.9  # of the largest share, where the target is out of reach


Share = Callable[[float], float]  # of attention on the offset, as a function of the strength


class Reached(NamedTuple):
    """A strength and the share of attention that it gives."""

    strength: float
    share: float


def last_queries(length: int, offset: int) -> Int[Tensor, " queries"]:
    """The last tokens of a context that have a token at the offset, in the last half and at most ``QUERIES``."""
    inside = torch.arange(max(offset, 0), min(length, length + offset))
    return inside[-max(min(QUERIES, (length + 1) // 2), 1) :]


def visible(queries: Int[Tensor, " queries"], length: int, *, causal: bool) -> Bool[Tensor, "queries tokens"]:
    """Which keys each query sees: under a causal mask those up to itself."""
    keys = torch.arange(length)
    return keys <= queries[:, None] if causal else torch.ones(len(queries), length, dtype=torch.bool)


def mean_share(
    logits: Float[Tensor, "*contents queries tokens"],
    targets: Int[Tensor, " queries"],
    seen: Bool[Tensor, "queries tokens"],
) -> float:
    """The attention that queries put on their targets, on average."""
    probability = logits.masked_fill(~seen, -math.inf).softmax(dim=-1)
    return probability[..., torch.arange(len(targets)), targets].mean().item()


def least_strength(share: Share, target: float, sufficient: float = SUFFICIENT, least: float = 0.0) -> Reached:
    """Return the least strength that gives the target share.

    Where none does, it is the least that gives a sufficient part of the largest share: beyond, each head looks at one
    token alone, the right one or not, and training could not change it.

    Args:
        share: the share of attention at a strength; rising up to where it is largest.
        target: between 0 and 1.
        sufficient: part of the largest share, where the target is out of reach.
        least: the strength to begin with.
    """
    tried = [Reached(least, share(least))]
    for step in range(STEPS + 1):
        if tried[-1].share >= target:
            break
        strength = 2.0 ** (step / 2 - 8)
        if strength <= least:
            continue
        tried.append(Reached(strength, share(strength)))
    if tried[-1].share < target:
        target = sufficient * max(each.share for each in tried)
    first = next(place for place, each in enumerate(tried) if each.share >= target)
    return tried[first] if first == 0 else _between(share, tried[first - 1].strength, tried[first], target)


def _between(share: Share, low: float, high: Reached, target: float) -> Reached:
    for _ in range(BISECTIONS):
        middle = (low + high.strength) / 2
        reached = Reached(middle, share(middle))
        if reached.share >= target:
            high = reached
        else:
            low = middle
    return high


def reach(shares: Callable[[int], Share], strength: float, length: int, least: float, shortest: int) -> int:
    """Return the longest of the contexts N, N/2, N/4, … at whose end the share is at least ``least``; 0 for none."""
    while length >= shortest:
        if shares(length)(strength) >= least:
            return length
        length //= 2
    return 0

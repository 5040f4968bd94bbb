"""Looking at an offset through rotations: constant parts of queries and keys, whose product depends on the distance.

A constant query b_q and key b_k, turned by their positions, have the product Σ_j w_j cos θ_j (t − s − offset) where b_k
is √w_j in the first coordinate of each pair and b_q the same turned by −θ_j offset. Of the weights w_j those are best
that leave least of the attention for other distances.

Letters: k head_dim, r turned pairs, L distances, N tokens.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from structured_init.sites.rotary import Rotary

ROUNDS = 400  # of the search for weights
RATE = 2.0


def best_weights(
    frequencies: Float64[Tensor, " r"], distances: Int[Tensor, " L"], target: float
) -> Float64[Tensor, " r"]:
    """Return weights w ≥ 0 of sum 1 whose kernel, at the least strength, has the target share at distance 0.

    The share at strength S is 1/(1 + Σ_τ exp(−S Σ_j w_j (1 − cos θ_j τ))). For growing S the sum over distances is
    made small by exponentiated gradients, which is convex in w, until the share is reached.

    Args:
        frequencies: θ, radians per token.
        distances: τ, from the target to the other keys; 0 is not among them.
        target: the share.
    """
    gaps = 1 - (distances[:, None].double() * frequencies).cos()
    weights = torch.full((len(frequencies),), 1 / len(frequencies), dtype=torch.float64)
    for strength in (4.0 * 2 ** (step / 2) for step in range(16)):
        for _ in range(ROUNDS):
            rest = (-strength * gaps @ weights).softmax(dim=0)  # how much each distance still draws
            gradient = rest @ gaps
            weights = weights * (RATE * (gradient - gradient.max())).exp()
            weights = weights / weights.sum()
        if torch.logsumexp(-strength * gaps @ weights, dim=0).neg().sigmoid() >= target:
            break
    return weights


def constant_parts(
    weights: Float64[Tensor, " r"], rotary: Rotary, offset: int, head_dim: int
) -> tuple[Float64[Tensor, " head_dim"], Float64[Tensor, " head_dim"]]:
    """Return b_q and b_k whose product, turned, is Σ_j w_j cos θ_j (t − s − offset)."""
    query, key = torch.zeros(2, head_dim, dtype=torch.float64)
    first, second = rotary.pairs.unbind(dim=1)
    angle = rotary.frequencies * offset
    query[first], query[second] = weights.sqrt() * angle.cos(), -weights.sqrt() * angle.sin()
    key[first] = weights.sqrt()
    return query, key


def turn(
    vectors: Float[Tensor, "tokens head_dim"], tokens: Int[Tensor, " tokens"], rotary: Rotary
) -> Float[Tensor, "tokens head_dim"]:
    """Turn the pairs of each vector by frequency · position, as the host does."""
    first, second = rotary.pairs.unbind(dim=1)
    angle = tokens[:, None].double() * rotary.frequencies
    cos, sin = (rotary.scaling**0.5 * part for part in (angle.cos(), angle.sin()))
    turned = vectors.double().clone()
    turned[:, first] = vectors[:, first] * cos - vectors[:, second] * sin
    turned[:, second] = vectors[:, second] * cos + vectors[:, first] * sin
    return turned

"""Looking at an offset through rotations: constant parts of queries and keys, whose product depends on the distance.

A constant query b_q and key b_k, turned by their positions, have the product Σ_j w_j cos θ_j (t − s − offset) where b_k
is √w_j in the first coordinate of each pair and b_q the same turned by −θ_j offset. Of the weights w_j those are best
that leave least of the attention for other distances.

Letters: k head_dim, r turned pairs, L distances, N tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from structured_init.attention.sequence.heads import (
    Layer,
    Outcome,
    Share,
    Shares,
    first_that_suffices,
    last_queries,
    mean_share,
    normed,
    shared_amplitudes,
    visible,
)
from structured_init.attention.sequence.measured import LITTLE, read_by, reading_as_large_as_seen
from structured_init.errors import StructuredInitError
from structured_init.hosts.attention_positions import Rotary, repeated_over
from structured_init.hosts.layout import ProjectionBias, projection_bias
from structured_init.hosts.positions import position_sites
from structured_init.hosts.stream import norm_weight, stream_into
from structured_init.overlay import Above, Weights

ROUNDS = 400  # of the search for weights
RATE = 2.0
CONTENT = (1.0, 0.5, 0.25, 0.125, 0.0)  # of the host's queries and keys, the most that leaves the share
COMMON = 0.5  # root mean square of a direction common to all tokens over that of content
NEAR = 1.1  # times as much content as the embeddings give, up to which the direction stays as large
SAME = 1e-2  # of what is read, up to which a difference is rounding


def best_weights(
    frequencies: Float64[Tensor, " r"], distances: Int[Tensor, " L"], target: float
) -> Float64[Tensor, " r"]:
    """Return weights w ≥ 0 of sum 1 whose kernel, at the least strength, has the target share at distance 0.

    The share at strength S is 1/(1 + Σ_τ exp(−S Σ_j w_j (1 − cos θ_j τ))). For growing S the sum over distances is
    made small by exponentiated gradients, which is convex in w, until the share is reached.
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


def through_rotary(layer: Layer) -> Outcome:
    """Write constant parts of queries and keys: into biases, or as what reads a direction common to all tokens."""
    site, turns = layer.site, layer.positions.rotary
    assert turns is not None
    query_bias, key_bias = (projection_bias(site.module, each) for each in (site.layout.query, site.layout.key))
    biases = None if query_bias is None or key_bias is None else (query_bias, key_bias)
    queries_of, keys_of = layer.content(biased=False)
    direction, tables = common_direction(layer) if biases is None else (None, [])
    own = 1.0 if direction is None else 1 / math.sqrt(1 + COMMON**2)  # of content, beside the direction
    first = -max(0, *(offset[1] for _, _, offset in layer.heads)) if layer.causal else 1 - layer.length
    distances = torch.arange(first, layer.length)
    kernel = best_weights(turns.frequencies, distances[distances != 0], layer.target)
    parts = {head: constant_parts(kernel, turns, offset[1], site.head_dim) for head, _, offset in layer.heads}

    def shares(head: int, key: int, offset: int, kept: float) -> Shares:
        def at(length: int) -> Share:
            tokens, queries = torch.arange(length), last_queries(length, offset)
            seen = visible(queries, length, causal=layer.causal)

            def share(strength: float) -> float:
                amplitude = math.sqrt(strength / site.scale)
                query = own * kept * queries_of[head][queries] + amplitude * parts[head][0]
                keys = own * kept * keys_of[key][:length] + amplitude * parts[head][1]
                query, keys = turn(normed(layer, query), queries, turns), turn(normed(layer, keys), tokens, turns)
                return mean_share(site.scale * query @ keys.mT, queries - offset, seen)

            return share

        return at

    # A norm of queries and keys makes the same of all sizes but those below its epsilon: here they are the host's.
    least = site.scale * site.head_dim * _rms(queries_of) * _rms(keys_of) if site.layout.query_key_norm else 0.0
    kept, found, predicted = first_that_suffices(layer, shares, CONTENT, least)
    layer = reading_as_large_as_seen(layer)
    strengths = {head: each.strength / site.scale for head, each in found.items()}
    write_constants(layer, strengths, parts, kept, biases, direction)
    how = "biases of turned queries and keys"
    if direction is not None:
        how = f"a direction common to all rows but zeros of {', '.join(tables)}, which "
        how += "were changed (where the output is tied to them, it adds one number to their logits)"
    how += "" if kept == 1 else f"; the host's own queries and keys are {f'multiplied by {kept:g}' if kept else 'zero'}"
    return Outcome(found, predicted, how, reads=layer.reads)


def _rms(vectors: Tensor) -> float:
    return vectors.square().mean().sqrt().item()


def write_constants(
    layer: Layer,
    strengths: Mapping[int, float],
    parts: Mapping[int, tuple[Tensor, Tensor]],
    kept: float,
    biases: tuple[ProjectionBias, ProjectionBias] | None,
    direction: Float64[Tensor, " D"] | None,
) -> None:
    """Give heads constant parts of queries and keys, b_q and b_k, of the strength asked for.

    They are written into biases; where there are none, they are read from the direction u, which every token has with
    the length √D·a, a² = COMMON²/(1 + COMMON²): W = … + (u/γ) bᵀ/(√D a). Of the host's own, ``kept`` is left.
    """
    site, weights = layer.site, layer.weights
    amplitudes = shared_amplitudes(layer, strengths)
    query, key = site.query.double(), site.key.double()
    constants = [torch.zeros(len(each), site.head_dim, dtype=torch.float64) for each in (query, key)]
    if biases is not None:
        constants = [bias.get(weights).double() for bias in biases]
    for head, number, _ in layer.heads:
        amplitude = strengths[head] / amplitudes[number] if amplitudes[number] else 0.0
        constants[0][head] = amplitude * parts[head][0]
        constants[1][number] = amplitudes[number] * parts[head][1]
    written = [head for head, _, _ in layer.heads], layer.keys
    for matrices, numbers, constant in zip((query, key), written, constants, strict=True):
        for number in numbers:
            matrices[number] *= kept
            if direction is not None:
                matrices[number] = with_constant(layer, matrices[number], direction, constant[number])
    if biases is not None:
        for bias, value in zip(biases, constants, strict=True):
            bias.set(weights, value, "PreviousToken: biases")
    if biases is None or kept != 1:
        site.query, site.key = query, key


def with_constant(
    layer: Layer, weight: Float64[Tensor, "D k"], direction: Float64[Tensor, " D"], constant: Float64[Tensor, " k"]
) -> Float64[Tensor, "D k"]:
    """Return the weight that reads ``constant`` from the direction u that every token has, and else what it read."""
    gamma = norm_weight(layer.site, layer.weights)
    seen = direction if gamma is None else direction * gamma
    read = direction if gamma is None else direction / gamma.where(gamma.abs() > 1e-3, 1)
    length = layer.reads * math.sqrt(len(direction) * COMMON**2 / (1 + COMMON**2))
    return weight - torch.outer(read, seen @ weight) + torch.outer(read, constant / length)


def common_direction(layer: Layer) -> tuple[Float64[Tensor, " D"], list[str]]:
    """Give every token's embedding the same part along a direction u; return u and the names of the tables.

    E ← R (E − (E u) uᵀ) + μ u with μ = COMMON·√D times the root mean square of E. R makes all rows equally long, so
    that the norm before attention leaves the same of u in every token: what it left of rows of other lengths would
    differ by some 1/√(2D), which is too much where logits are large. So a row of zeros, as padding has, stays zero: of
    μ u alone the norm would leave more. u has no mean, which a layer norm would take out, and is drawn by the name of
    the largest table.

    Of several tables each that gives tokens of its own gets u, and what is added to the tokens of a larger one, as
    types of tokens and codebooks are, loses its part along u: a pass shows which tokens each changes. Where more is
    added to tokens, μ is as much larger, and u is orthogonal to a table that repeats along the tokens, so that all
    still read the same of it.
    """
    site, weights = layer.site, layer.weights
    tables = stream_into(site, weights).embeddings
    if not tables:
        raise StructuredInitError(
            f"PreviousToken: '{site.name}' rotates queries and keys that have no biases, which needs a direction"
            " common to all token embeddings, and none of its width was found: an nn.Embedding, or a parameter that a"
            " batch shows to be looked up by torch.nn.functional.embedding"
        )
    names = [weights.names(table)[0] for table in tables]
    draw = layer.rng.generator(names[0], "PreviousToken: direction")
    direction = torch.randn(site.embed_dim, dtype=torch.float64, generator=draw)
    direction = direction - direction.mean()
    beside = [each.value.double() for each in position_sites(weights) if repeated_over(each, site, weights)]
    if beside and sum(map(len, beside)) < site.embed_dim // 2:
        rows = torch.cat(beside)
        basis = torch.linalg.qr((rows - rows.mean(dim=1, keepdim=True)).mT).Q
        direction = direction - basis @ (basis.mT @ direction)
        direction = direction - direction.mean()  # of rows that are zero a basis has any mean
    direction = direction / direction.norm()
    before = read_by(layer) if len(tables) > 1 or beside else None
    chosen: list[int] = []
    added: list[int] = []
    if before is not None:
        reached, least = torch.zeros_like(before.real), SAME * before.square.sqrt()
        for number, table in enumerate(tables):
            above = Above(weights)
            _add_common(above, table, direction, COMMON)
            after = read_by(replace(layer, weights=above))
            changed = reached if after is None else (after.x - before.x).abs().amax(-1) > least
            if changed.any() and not (changed & reached).any():
                chosen.append(number)
                reached = reached | changed
            elif changed.any():
                added.append(number)
    elif len(tables) > 1:
        weights.warn(
            f"a direction common to all tokens is written to '{names[0]}' alone: it was not seen whether"
            f" {', '.join(names[1:])} are tokens of their own or added to those"
            + (": give a batch, as batch=…" if weights.batch is None else "")
        )
    for number in chosen or [0]:
        _add_common(weights, tables[number], direction, COMMON)
    for table in (tables[number] for number in added):
        along = direction.to(table.dtype)
        table = weights.edit(table, "PreviousToken: no part along the direction common to all tokens")
        table.sub_(torch.outer(table @ along, along))
    if chosen and (after := read_by(layer)) is not None:
        seen = after.x[reached & after.real]
        part = ((seen @ direction).square() / seen.square().sum(dim=-1)).mean().item()
        common = COMMON**2 * math.sqrt((1 - part) / max(part, LITTLE))
        for number in chosen if common > NEAR * COMMON else ():
            _add_common(weights, tables[number], direction, common)
    return direction, [names[number] for number in chosen or [0]]


def _add_common(weights: Weights, tensor: Tensor, direction: Float64[Tensor, " D"], common: float) -> None:
    table = weights.edit(tensor, "PreviousToken: a direction common to all tokens")
    along = direction.to(table.dtype)
    table.sub_(torch.outer(table @ along, along))
    lengths = torch.linalg.vector_norm(table, dim=1, keepdim=True, dtype=torch.float64)
    filled = lengths > 0
    length = (lengths.square().sum() / filled.sum().clamp(min=1)).sqrt()
    table.mul_((length / lengths.where(filled, 1)).to(table.dtype))
    table.add_((common * length * filled).to(table.dtype) * along)

"""What is written into a layer: queries and keys of some of its heads, the others left as they are.

Letters: H heads, Hkv key heads, D embed_dim, k head_dim, u a unit direction of the tokens (D).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from structured_init.attention.sequence.job import Job
from structured_init.attention.sequence.offsets import Offset
from structured_init.errors import StructuredInitError
from structured_init.linalg import random_orthogonal
from structured_init.sites.bias import ProjectionBias
from structured_init.sites.stream import norm_weight, stream_into

COMMON = 0.5  # root mean square of a direction common to all tokens over that of content


def write_product(
    job: Job,
    strengths: Mapping[int, float],
    query_of: Callable[[int, int, Offset], Float64[Tensor, "D k"]],
    key_of: Callable[[int], Float64[Tensor, "D k"]],
) -> None:
    """Write W_q and W_k of unit strength such that each head's product has the strength asked for.

    Heads that share a key share it at their mean strength, and their queries have the rest.

    Args:
        job: the layer.
        strengths: of each head's product.
        query_of: W_q of (head, key, offset).
        key_of: W_k of a key.
    """
    site = job.site
    query, key = site.query.double(), site.key.double()
    amplitudes = shared_amplitudes(job, strengths)
    for number in job.keys:
        key[number] = amplitudes[number] * job.through_norm(key_of(number))
    for head, number, offset in job.heads:
        amplitude = strengths[head] / amplitudes[number] if amplitudes[number] else 0.0
        query[head] = amplitude * job.through_norm(query_of(head, number, offset))
    site.query, site.key = query, key


def shared_amplitudes(job: Job, strengths: Mapping[int, float]) -> dict[int, float]:
    """Return, for each key, the root of the mean strength of the heads that share it."""
    groups = {key: [strengths[head] for head, own, _ in job.heads if own == key] for key in job.keys}
    return {key: math.sqrt(sum(each) / len(each)) for key, each in groups.items()}


def write_constants(
    job: Job,
    strengths: Mapping[int, float],
    parts: Mapping[int, tuple[Tensor, Tensor]],
    kept: float,
    biases: tuple[ProjectionBias, ProjectionBias] | None,
    direction: Float64[Tensor, " D"] | None,
) -> None:
    """Give heads constant parts of queries and keys, of the strength asked for.

    Args:
        job: the layer.
        strengths: of each head's product.
        parts: b_q and b_k of unit strength of each head.
        kept: the factor on the host's own queries and keys.
        biases: where they are written, or ``None`` for
        direction: u, which every token has with the length √D·a, a² = COMMON²/(1 + COMMON²): W = … + (u/γ) bᵀ/(√D a).
    """
    site, weights = job.site, job.weights
    amplitudes = shared_amplitudes(job, strengths)
    query, key = site.query.double(), site.key.double()
    constant_query, constant_key = torch.zeros(len(query), site.head_dim), torch.zeros(len(key), site.head_dim)
    constants = constant_query.double(), constant_key.double()
    if biases is not None:
        constants = biases[0].get(weights).double(), biases[1].get(weights).double()
    for head, number, _ in job.heads:
        amplitude = strengths[head] / amplitudes[number] if amplitudes[number] else 0.0
        constants[0][head] = amplitude * parts[head][0]
        constants[1][number] = amplitudes[number] * parts[head][1]
    written = [head for head, _, _ in job.heads], job.keys
    for matrices, numbers, constant in zip((query, key), written, constants, strict=True):
        for number in numbers:
            matrices[number] *= kept
            if direction is not None:
                matrices[number] = with_constant(job, matrices[number], direction, constant[number])
    if biases is not None:
        for bias, value in zip(biases, constants, strict=True):
            bias.set(weights, value, "PreviousToken: biases")
    if biases is None or kept != 1:
        site.query, site.key = query, key


def with_constant(
    job: Job, weight: Float64[Tensor, "D k"], direction: Float64[Tensor, " D"], constant: Float64[Tensor, " k"]
) -> Float64[Tensor, "D k"]:
    """Return the weight that reads ``constant`` from the direction u that every token has, and else what it read."""
    gamma = norm_weight(job.site, job.weights)
    seen = direction if gamma is None else direction * gamma
    read = direction if gamma is None else direction / gamma.where(gamma.abs() > 1e-3, 1)
    length = job.reads * math.sqrt(len(direction) * COMMON**2 / (1 + COMMON**2))
    return weight - torch.outer(read, seen @ weight) + torch.outer(read, constant / length)


def common_direction(job: Job) -> Float64[Tensor, " D"]:
    """Give every token's embedding the same part along a direction u, and return u.

    E ← R (E − (E u) uᵀ) + μ u with μ = COMMON·√D times the root mean square of E. R makes all rows equally long, so
    that the norm before attention leaves the same of u in every token: what it left of rows of other lengths would
    differ by some 1/√(2D), which is too much where logits are large. u has no mean, which a layer norm would take out,
    and depends on the name of the embedding alone.
    """
    site, weights = job.site, job.weights
    tables = stream_into(site, weights).embeddings
    if not tables:
        raise StructuredInitError(
            f"PreviousToken: '{site.name}' rotates queries and keys that have no biases, which needs a direction"
            " common to all token embeddings, and no token embedding of its width was found"
        )
    name = weights.names(tables[0])[0]
    direction = torch.randn(
        site.embed_dim, dtype=torch.float64, generator=job.rng.generator(name, "PreviousToken: direction")
    )
    direction = direction - direction.mean()
    direction = direction / direction.norm()
    table = weights.edit(tables[0], "PreviousToken: a direction common to all tokens")
    along = direction.to(table.dtype)
    table.sub_(torch.outer(table @ along, along))
    lengths = torch.linalg.vector_norm(table, dim=1, keepdim=True, dtype=torch.float64)
    length = (lengths.square().sum() / (lengths > 0).sum().clamp(min=1)).sqrt()  # that of padding may be empty
    table.mul_((length / lengths.where(lengths > 0, 1)).to(table.dtype))
    table.add_((COMMON * length).to(table.dtype) * along)
    return direction


def normed(job: Job, vectors: Float[Tensor, "tokens k"]) -> Float[Tensor, "tokens k"]:
    """Return queries or keys as the host's norm leaves them, of root mean square 1; unchanged where it has none."""
    if not job.site.layout.query_key_norm:
        return vectors
    return vectors / vectors.square().mean(dim=-1, keepdim=True).sqrt().clamp(min=1e-6)


def orthonormal(job: Job, key: int) -> Float64[Tensor, "D k"]:
    """Draw k orthonormal directions for one key."""
    site = job.site
    return random_orthogonal(site.embed_dim, site.head_dim, generator=job.draw(f"directions {key}"))

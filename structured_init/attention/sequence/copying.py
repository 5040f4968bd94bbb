"""Values and outputs that copy what a head looks at into a subspace of its own.

Letters: H heads, D embed_dim, k value width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float64
from torch import Tensor

from structured_init.attention.sequence.job import Job, Outcome
from structured_init.linalg import random_orthogonal


def copying_subspaces(
    embed_dim: int, width: int, sources: Sequence[int], free: Tensor | None = None, *, generator: torch.Generator
) -> tuple[dict[int, Float64[Tensor, "D k"]], list[Float64[Tensor, "k D"]]]:
    """Return V of each value, which heads read, and O of each head, into which it writes: orthonormal columns and rows.

    All are orthogonal while there is room. Where there is none, a value is read from where heads of other values write,
    so that none reads from where it writes; and beyond H·k = D, or where all heads have one value, they are drawn anew.

    Args:
        embed_dim: D.
        width: k.
        sources: the number of the value of each head that copies.
        free: coordinates without positions: V lies there where they suffice, and O too, or else beside them.
        generator: draws them.
    """
    values = sorted(set(sources))
    if free is not None and len(free) >= width * len(values):
        inside = len(values) + (len(sources) if len(free) >= width * (len(values) + len(sources)) else 0)
        blocks = _within(embed_dim, free, width * inside, generator).split(width, dim=1)
        beside = torch.ones(embed_dim, dtype=torch.bool)
        beside[free] = False
        if inside == len(values) and width * len(sources) <= int(beside.sum()):
            blocks += _within(embed_dim, beside.nonzero()[:, 0], width * len(sources), generator).split(width, dim=1)
        elif inside == len(values):
            return copying_subspaces(embed_dim, width, sources, generator=generator)
        return dict(zip(values, blocks, strict=False)), [block.mT for block in blocks[len(values) :]]
    room = max(embed_dim // width, 1)
    blocks: list[Tensor] = []
    while len(blocks) < len(sources) + len(values):
        basis = random_orthogonal(embed_dim, min(room * width, embed_dim), generator=generator)
        blocks.extend(basis.split(width, dim=1)[:room])
    write, spare = blocks[: len(sources)], iter(blocks[len(sources) :])
    read = {}
    for value in values:
        others = [block for block, source in zip(write, sources, strict=True) if source > value]
        others += [block for block, source in zip(write, sources, strict=True) if source < value]
        crowded = len(sources) + len(values) > room and bool(others)
        read[value] = others[0] if crowded else next(spare)
    return read, [block.mT for block in write]


def _within(embed_dim: int, coordinates: Tensor, columns: int, generator: torch.Generator) -> Tensor:
    """Draw orthonormal columns (D, columns) that are zero but in some coordinates."""
    drawn = torch.zeros(embed_dim, columns, dtype=torch.float64)
    drawn[coordinates] = random_orthogonal(len(coordinates), columns, generator=generator)
    return drawn


def write_copies(job: Job, scale: float, outcome: Outcome) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """Write values and outputs of the heads that look at offsets: W_v = V, W_o = scale · stream · O.

    What is seen has mean square 1 after the norm, so with a scale of 1 the copy is as large, in each coordinate of its
    subspace, as the stream is.

    Returns:
        V by the number of the value, and O by the number of the head.
    """
    site = job.site
    value, output = site.value.double(), site.output.double()
    heads = [head for head, _, _ in job.heads]
    group = len(output) // len(value)
    sources = [head // group for head in heads]
    read, blocks = copying_subspaces(
        site.embed_dim, value.shape[-1], sources, outcome.free, generator=job.draw("subspaces")
    )
    write = dict(zip(heads, blocks, strict=True))
    for head, source in zip(heads, sources, strict=True):
        value[source] = job.through_norm(read[source])
        output[head] = scale * outcome.stream * write[head]
    site.value, site.output = value, output
    site.note_value_output()
    return read, write

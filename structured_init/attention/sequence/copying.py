"""Values and outputs that copy what a head looks at into a subspace of its own.

Letters: H heads, Hkv value heads, D embed_dim, k value width of a head.
"""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

from structured_init.attention.sequence.job import Job
from structured_init.linalg import random_orthogonal


def copying_subspaces(
    embed_dim: int, heads: int, value_heads: int, width: int, *, generator: torch.Generator
) -> tuple[Float64[Tensor, "value_heads D k"], Float64[Tensor, "heads k D"]]:
    """Return V, which each head reads, and O, into which it writes, with orthonormal columns and rows.

    Different heads write into orthogonal subspaces while there is room (H·k ≤ D), and none reads from where it writes
    while there is room for that (two heads or more).
    """
    room = max(embed_dim // width, 1)
    blocks: list[Tensor] = []
    while len(blocks) < heads + value_heads:
        count = min(room, embed_dim // width) or 1
        basis = random_orthogonal(embed_dim, count * width, generator=generator)
        blocks.extend(basis[:, i * width : (i + 1) * width] for i in range(count))
    output = torch.stack([block.mT for block in blocks[:heads]])
    group = heads // value_heads
    value = torch.stack([blocks[(key * group + group) % max(heads, 2)] for key in range(value_heads)])
    return value, output


def write_copies(job: Job, scale: float, stream: float) -> None:
    """Write the values and outputs of the heads that look at offsets: W_v = V, W_o = scale · stream · O.

    What is seen has mean square 1 after the norm, so with a scale of 1 the copy is as large, in each coordinate of its
    subspace, as the stream is.
    """
    site = job.site
    value, output = site.value.double(), site.output.double()
    read, write = copying_subspaces(
        site.embed_dim, len(output), len(value), value.shape[-1], generator=job.draw("subspaces")
    )
    group = len(output) // len(value)
    for head, _, _ in job.heads:
        value[head // group] = job.through_norm(read[head // group])
        output[head] = scale * stream * write[head]
    site.value, site.output = value, output
    site.note_value_output()

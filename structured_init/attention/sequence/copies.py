"""Copies of what heads see, in subspaces of their own: W_v = V, W_o = size · Oᵀ.

Letters: D embed_dim, k width of a value. V and O (D, k) have orthonormal columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float64, Int
from torch import Tensor, nn

from structured_init.attention.sequence.heads import Heads
from structured_init.attention.sequence.recorded import Reached, run_until_reached
from structured_init.attention.stream_share import Residuals, last_module, tensors
from structured_init.hosts.stream import rms_of, stream_into
from structured_init.util.linalg import random_orthogonal

Subspaces = dict[int, Float64[Tensor, "D k"]]


def measure_stream(heads: Heads) -> float:
    """Return the root mean square of what attention's branch is added to, in a run of the network as it is now."""
    site, weights = heads.site, heads.weights
    seen: list[float] = []

    def enter(_: str, stream: Tensor, *__: object) -> None:
        seen.append(rms_of(stream))
        raise Reached

    def put_out(_: nn.Module, __: tuple, output: Any) -> None:
        residuals.puts_out(site.name, next(tensors(output)))

    residuals = Residuals(enter)
    hook = last_module(site, weights.modules).register_forward_hook(put_out)
    try:
        run_until_reached(weights, heads.layer.trial, residuals)
    finally:
        hook.remove()
    if seen:
        return seen[0]
    stream = stream_into(site, weights)  # its output is not seen to be added to anything
    return 1.0 if stream.normalized else stream.rms


def draw_subspaces(
    embed_dim: int, width: int, sources: Sequence[int], free: Int[Tensor, " free"], *, generator: torch.Generator
) -> tuple[Subspaces, list[Float64[Tensor, "D k"]]]:
    """Return V of each value, which heads read, and O of each head, into which it writes.

    All are orthogonal while there is room. Where there is none, a value is read from where heads of other values write,
    so that none reads from where it writes; and beyond H·k = D, or where all heads have one value, they are drawn anew.
    ``sources`` has the number of the value of each head that copies. In ``free`` coordinates, those without positions,
    V lies where they suffice, and O too, or else beside them.
    """
    values = sorted(set(sources))
    reading, writing = width * len(values), width * len(sources)
    beside = torch.ones(embed_dim, dtype=torch.bool)
    beside[free] = False
    others = beside.nonzero()[:, 0]
    if reading and reading + writing <= len(free):
        blocks = _draw_within(embed_dim, free, reading + writing, generator).split(width, dim=1)
        return dict(zip(values, blocks, strict=False)), list(blocks[len(values) :])
    if reading <= len(free) and writing <= len(others):
        read = _draw_within(embed_dim, free, reading, generator).split(width, dim=1)
        write = _draw_within(embed_dim, others, writing, generator).split(width, dim=1)
        return dict(zip(values, read, strict=True)), list(write)
    return _draw_anywhere(embed_dim, width, sources, generator)


def _draw_within(embed_dim: int, coordinates: Tensor, columns: int, generator: torch.Generator) -> Tensor:
    """Draw orthonormal columns (D, columns) that are zero but in some coordinates."""
    drawn = torch.zeros(embed_dim, columns, dtype=torch.float64)
    drawn[coordinates] = random_orthogonal(len(coordinates), columns, generator=generator)
    return drawn


def _draw_anywhere(
    embed_dim: int, width: int, sources: Sequence[int], generator: torch.Generator
) -> tuple[Subspaces, list[Tensor]]:
    """Return subspaces of all coordinates, orthogonal as far as there is room."""
    values = sorted(set(sources))
    room = max(embed_dim // width, 1)
    blocks: list[Tensor] = []
    while len(blocks) < len(sources) + len(values):
        basis = random_orthogonal(embed_dim, min(room * width, embed_dim), generator=generator)
        blocks.extend(basis.split(width, dim=1)[:room])
    write, spare = blocks[: len(sources)], blocks[len(sources) :]
    crowded = len(sources) + len(values) > room
    read = {}
    for value in values:
        later = [place for place, source in enumerate(sources) if source > value]
        earlier = [place for place, source in enumerate(sources) if source < value]
        others = later + earlier
        read[value] = write[others[0]] if crowded and others else spare.pop(0)
    return read, write


def write_copies(heads: Heads, scale: float) -> tuple[Subspaces, Subspaces, float]:
    """Write values and outputs of the heads that look at offsets: W_v = V, W_o = scale · stream · Oᵀ.

    What is seen has mean square 1 after the norm, so with a scale of 1 the copy is as large, in each coordinate of its
    subspace, as the stream is. Return V by the number of the value, O by the number of the head, and scale · stream.
    """
    layer = heads.layer
    size = scale * measure_stream(heads)
    site = layer.site.by("PreviousToken: value_output")
    value, output = site.value.double(), site.output.double()
    looking = list(layer.looking)
    group = len(output) // len(value)
    sources = [head // group for head in looking]
    draw = layer.draw("subspaces")
    read, blocks = draw_subspaces(site.embed_dim, value.shape[-1], sources, heads.free, generator=draw)
    write = dict(zip(looking, blocks, strict=True))
    heads.measure_reads()
    for head, source in zip(looking, sources, strict=True):
        value[source] = heads.through_norm(read[source])
        output[head] = size * write[head].mT
    site.value, site.output = value, output
    site.note_value_output()
    return read, write, size

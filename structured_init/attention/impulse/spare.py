"""Values and outputs that leave the positions in the residual stream alone.

Letters: D embed_dim, r rank of the positions.
"""

from __future__ import annotations

from jaxtyping import Float64
from torch import Tensor

from structured_init.arguments import check_flag
from structured_init.attention.impulse.basis import Basis
from structured_init.attention.impulse.separable import CUTOFF
from structured_init.attention.impulse.task import find_positions
from structured_init.draws import Draws
from structured_init.errors import StructuredInitError
from structured_init.initializer import Initializer
from structured_init.plan import Weights
from structured_init.sites.attention import required_attention_sites
from structured_init.sites.select import Where


def position_span(positions: Float64[Tensor, "tokens embed_dim"]) -> Float64[Tensor, "embed_dim rank"]:
    """Return an orthonormal basis of the directions in which positions differ from their mean (D, r)."""
    return Basis.of(positions - positions.mean(dim=0)).cut(cutoff=CUTOFF).right


class SparePositions(Initializer):
    """Take the span of the positions out of what values read and outputs write, after a value–output part.

    Mimetic values subtract from a token part of what it looks at, its position included, so that after a few layers
    positions are gone and with them every map that is built on them. With W_v ← (I − VVᵀ) W_v and
    W_o ← W_o (I − VVᵀ), V an orthonormal basis of the positions, attention neither moves nor overwrites them. MLPs
    still do.

    Args:
        read: change the values.
        write: change the outputs.
        where: which attention layers, by name.

    Raises:
        StructuredInitError: at construction, nothing to write; at :meth:`plan`, no known attention layer, no
            positions, or positions that leave no direction free.

    Source: ours; measurements in ``docs/impulse.md``.
    """

    def __init__(self, read: bool = True, write: bool = True, where: Where = None) -> None:
        check_flag("SparePositions", read=read, write=write)
        if not read and not write:
            raise StructuredInitError("SparePositions: read and write are both off: there is nothing to write")
        self.read = read
        self.write = write
        self.where = where

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        sites = required_attention_sites(weights, self.where, "SparePositions")
        positions = find_positions(sites, weights)
        for site in weights.each(sites):
            known = positions[site.name]
            if known is None:
                raise StructuredInitError(
                    f"SparePositions: no position embedding was recognized in the model of '{site.name}'"
                )
            span = position_span(known.value)
            if span.shape[1] >= site.embed_dim:
                raise StructuredInitError(
                    f"SparePositions: '{known.site.name}' takes all {site.embed_dim} directions: use positions of"
                    " smaller rank, such as row and column codes"
                )
            site = site.by("SparePositions")
            if self.read:
                value = site.value.double()
                site.value = value - span @ (span.mT @ value)
            if self.write:
                output = site.output.double()
                site.output = output - (output @ span) @ span.mT

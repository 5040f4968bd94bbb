"""Conditioned initialization of attention: queries, keys and values whose condition number is one.

Letters: H heads, Hkv key–value heads, D embed_dim, k head_dim. Row vectors: q = x W_q.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from structured_init.arguments import check_choice
from structured_init.draws import Draws
from structured_init.errors import StructuredInitError
from structured_init.hosts.attention import required_attention_sites
from structured_init.hosts.registry import Where
from structured_init.initializer import Initializer
from structured_init.linalg import orthogonal_job
from structured_init.overlay import Weights
from structured_init.threads import side_by_side

Identity = Literal["layer", "head"]


def semi_orthogonal_heads(
    heads: int, dim: int, head_dim: int, *, generator: torch.Generator
) -> Float64[Tensor, "heads dim head_dim"]:
    """Draw one matrix per head with WᵀW = I_k (or W Wᵀ = I_D where k > D), independent and uniform (Haar)."""
    jobs = map(lambda _: orthogonal_job(dim, head_dim, generator=generator), range(heads))
    return torch.stack(list(side_by_side(jobs, scratch=8 * dim * head_dim, layer=12 * dim**2)))


def identity_heads(heads: int, dim: int, head_dim: int, identity: Identity) -> Float64[Tensor, "heads dim head_dim"]:
    """Return the rectangular identity, ones where row = column and zeros elsewhere, as values of all heads.

    ``"layer"``: the heads side by side are I of shape (D, H·k), so that head h reads coordinates h·k to (h+1)·k;
    ``"head"``: every head is I of shape (D, k) and reads the first k.
    """
    if identity == "head":
        return torch.eye(dim, head_dim, dtype=torch.float64).expand(heads, -1, -1).clone()
    return torch.eye(dim, heads * head_dim, dtype=torch.float64).reshape(dim, heads, head_dim).movedim(1, 0)


@dataclass(eq=False, repr=False)
class Conditioned(Initializer):
    """W_q and W_k semi-orthogonal in every head, W_v a rectangular identity: every singular value is one.

    The output projection, biases, positions and everything else are left to the host or to what is composed before,
    and so is the factor on the logits: what the paper does with them is unknown to us.

    Args:
        query_key: write queries and keys, each head's drawn for itself.
        value: write the values.
        identity: ``"layer"`` gives each head coordinates of its own, so that the values of all heads together have
            condition number one; ``"head"`` gives every head the same first k. Which the paper means is unconfirmed.
        where: which attention layers, by shell pattern.
        cross: write cross-attention as well.

    Raises:
        StructuredInitError: at construction, an unknown ``identity``, or nothing to write; at :meth:`plan`, no
            attention layer of a known class.

    Under grouped queries a key or value that several heads share is drawn once. Where the heads together are wider than
    the tokens, the rectangular identity ends before the last of them: their values are zero, and the report says so.

    Source: Saratchandran & Lucey, ICLR 2026 (OpenReview cKNOCYPo2W), known to us at second hand, see
    ``docs/conditioned.md``.
    """

    query_key: bool = True
    value: bool = True
    identity: Identity = "layer"
    where: Where = None
    cross: bool = False

    def __post_init__(self) -> None:
        check_choice("Conditioned", identity=(self.identity, Identity))
        if not self.query_key and not self.value:
            raise StructuredInitError("Conditioned: query_key and value are both off: there is nothing to write")

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        for site in weights.each(required_attention_sites(weights, self.where, "Conditioned", cross=self.cross)):
            query, key, value = site.layout.query, site.layout.key, site.layout.value
            if self.query_key:
                part, generator = site.by("Conditioned: query_key"), rng.generator(site.name, "query")
                part.query = semi_orthogonal_heads(query.heads, query.width, query.head_dim, generator=generator)
                generator = rng.generator(site.name, "key")
                part.key = semi_orthogonal_heads(key.heads, key.width, key.head_dim, generator=generator)
                part.note_query_key()
            if self.value:
                part, (heads, head_dim) = site.by("Conditioned: value"), (value.heads, value.head_dim)
                part.value = identity_heads(heads, value.width, head_dim, self.identity)
                if self.identity == "layer" and heads * head_dim > value.width:
                    part.note(
                        f"{heads} value heads of {head_dim} are wider than width {value.width}: the values beyond "
                        "start at zero"
                    )

"""What the solvers of impulse initialization are given, and what they share.

A task is a layer, the positions of its tokens, and where each head should look; a target is a convolution with one
impulse per head; queries and keys in closed form go from a target among tokens to factors among features.

Letters: H heads, N tokens of a grid (Gy, Gx), D embed_dim, r rank, k head_dim, G heads that share a key. An offset
(m, n) leads m rows down, n columns right. Row vectors: the logits are P W_q W_kᵀ Pᵀ.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from structured_init.attention.positions import Positions
from structured_init.attention.products import halves
from structured_init.hosts.attention import AttentionSite
from structured_init.hosts.positions import PositionSite
from structured_init.util.errors import StructuredInitError
from structured_init.util.linalg import signed_svd
from structured_init.weights import Weights

Order = Literal["random", "fixed"]
Border = Literal["zero", "clamp"]


def impulse_maps(
    offsets: Int[Tensor, "heads 2"], grid: tuple[int, int], *, border: Border
) -> Float64[Tensor, "heads tokens tokens"]:
    """The convolution with each head's impulse as a matrix: entry (query, query + offset) is 1."""
    shift = partial(axis_shift, border=border)
    return torch.stack([torch.kron(shift(grid[0], down), shift(grid[1], right)) for down, right in offsets.tolist()])


def axis_shift(size: int, offset: int, *, border: Border) -> Float64[Tensor, "size size"]:
    """The shift along one axis: entry (i, i + offset) is 1.

    ``"zero"`` leaves the row of a query whose target lies outside empty, as published, which no softmax can produce;
    ``"clamp"`` lets it look at the last position inside.
    """
    source = torch.arange(size)
    target = source + offset
    inside = (target >= 0) & (target < size)
    shift = torch.zeros(size, size, dtype=torch.float64)
    kept = inside if border == "zero" else torch.ones_like(inside)
    shift[source[kept], target[kept].clamp(0, size - 1)] = 1
    return shift


class Basis(NamedTuple):
    """The singular value decomposition P = U S Vᵀ of some tokens, cut to the part that is inverted."""

    left: Float64[Tensor, "tokens rank"]  # U (N, r)
    singular: Float64[Tensor, " rank"]  # S (r,), descending
    right: Float64[Tensor, "embed_dim rank"]  # V (D, r)

    @classmethod
    def of(cls, tokens: Float64[Tensor, "tokens embed_dim"]) -> Basis:
        """Decompose P (N, D)."""
        return cls(*signed_svd(tokens))

    def cut(self, *, cutoff: float, rank: int | None = None) -> Basis:
        """Keep singular values above ``cutoff`` times the largest, and at most ``rank`` of them."""
        kept = int((self.singular > cutoff * self.singular[0]).sum())
        if not kept:
            raise StructuredInitError(
                "Impulse: the position embedding is all zero, so tokens cannot be told apart: "
                "initialize it first, as with Positions()"
            )
        kept = kept if rank is None else min(kept, rank)
        return Basis(self.left[:, :kept], self.singular[:kept], self.right[:, :kept])


class Factors(NamedTuple):
    """The queries of the heads that share one key, that key, and what was kept of the products that they stand for.

    Queries and keys are in the coordinates of a basis' V, so W = V · coordinates: r numbers for each of D.
    """

    query: Float64[Tensor, "group rank head_dim"]  # coordinates of W_q of each head (G, r, k)
    key: Float64[Tensor, "rank head_dim"]  # coordinates of W_k (r, k), the same for all
    rank: int  # number of directions of the key that the products M_h need together; the rank of M where G = 1
    kept: float  # share of Σ_h ‖M_h‖² that the W_q W_kᵀ have; below 1 only where k < rank


def factor(basis: Basis, cores: Float64[Tensor, "group rank rank"], head_dim: int) -> Factors:
    """Split each M_h = P⁺ T_h P⁺ᵀ into its own W_q and one W_k for all, as well as k directions of the key can.

    With A diag(σ) Bᵀ = svd([M_1; …; M_G]), W_k = B_k √σ_k / ⁴√G and W_q = A_hk √σ_k ⁴√G (:func:`halves`): W_q W_kᵀ =
    M_h B_k B_kᵀ, and no other W_k leaves less of Σ_h ‖M_h − W_q W_kᵀ‖². Where k > r zeros fill up.

    As P⁺ = V S⁻¹ Uᵀ, M_h = V (S⁻¹ Uᵀ T_h U S⁻¹) Vᵀ. The inner matrix is r × r and V has orthonormal columns, so its
    decomposition is that of the D × D matrix M_h.
    """
    left, singular, right = signed_svd((cores / basis.singular[:, None] / basis.singular).flatten(0, 1))
    query, key = halves(left.unflatten(0, cores.shape[:2]), singular, right, head_dim)
    energy = singular.square()
    rank = int((singular > 1e-12 * singular[0]).sum()) if singular.numel() else 0
    kept = float(energy[:head_dim].sum() / energy.sum()) if rank else 1.0
    return Factors(query, key, rank, kept)


def layer_norm(tokens: Float64[Tensor, "*inputs tokens embed_dim"]) -> Float64[Tensor, "*inputs tokens embed_dim"]:
    """Layer normalization without parameters, ε = 1e-5, as the published solvers apply it to positions."""
    return torch.nn.functional.layer_norm(tokens, tokens.shape[-1:])


@dataclass(eq=False)
class GridPositions:
    """The positions of a model or tower; what is derived from them is computed once, for all its layers."""

    site: PositionSite  # where they are kept
    # solutions of the separable solver so far; they depend on nothing else of a layer but their key
    shifts: dict[tuple, Factors] = field(default_factory=dict)

    @cached_property
    def value(self) -> Float64[Tensor, "tokens embed_dim"]:
        """The positions as planned so far (N, D)."""
        return self.site.value.double()

    @cached_property
    def basis(self) -> Basis:
        """The decomposition of the layer-normalized positions, as they come to attention where no content is."""
        return Basis.of(layer_norm(self.value))


@dataclass(frozen=True)
class Task:
    """What a solver is given."""

    site: AttentionSite  # the attention layer
    positions: GridPositions | None  # those of its tokens, or ``None`` where its model has none
    offsets: Int[Tensor, "heads 2"]  # (H, 2), rows and columns from query to target
    border: Border  # what happens to a target outside the grid
    draw: Callable[[str], torch.Generator]  # gives the generator of a named part
    weights: Weights  # the overlay, for solvers that run the model
    batch: Tensor | None  # real inputs, where the user gave some

    @property
    def group(self) -> int:
        """G, how many query heads share a key."""
        return self.site.num_heads // self.site.num_key_value_heads

    @property
    def grid(self) -> tuple[int, int]:
        """(Gy, Gx)."""
        return self.site.grid

    def known_positions(self) -> GridPositions:
        """Return the positions."""
        if self.positions is None:
            raise StructuredInitError(
                f"Impulse: no position embedding was recognized in the model of '{self.site.name}':"
                " build it with one, or describe it with structured_init.register_positions; into tables of relative"
                " positions (Swin, BEiT), PreviousToken(where='*') writes the same"
            )
        return self.positions


class ImpulseSolver(ABC):
    """How queries and keys are found for which attention is the convolution with an impulse.

    A solver is a dataclass: its arguments are in the report.

    Attributes:
        offsets, border, shared: what ``None`` stands for in :class:`Impulse`, as the source has it.
    """

    offsets: Order = "random"
    border: Border = "zero"
    shared: bool = False

    @property
    def needs_batch(self) -> bool:
        """Whether it solves for real images."""
        return False

    @abstractmethod
    def own_positions(self) -> Positions:
        """Return the positions for which the source solves."""

    @abstractmethod
    def solve(self, task: Task) -> tuple[Tensor, Tensor]:
        """Return W_q (H, D, k) and W_k (Hkv, D, k)."""

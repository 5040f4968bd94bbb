"""Queries and keys in closed form: from a target among tokens to factors among features.

Letters: N tokens, D embed_dim, r rank, k head_dim, G heads that share a key. Row vectors: the logits are P W_q W_kᵀ Pᵀ.
"""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float64
from torch import Tensor

from structured_init.attention.grouped import halves
from structured_init.errors import StructuredInitError
from structured_init.linalg import signed_svd


class Basis(NamedTuple):
    """The singular value decomposition P = U S Vᵀ of some tokens, cut to the part that is inverted.

    Attributes:
        left: U (N, r).
        singular: S (r,), descending.
        right: V (D, r).
    """

    left: Float64[Tensor, "tokens rank"]
    singular: Float64[Tensor, " rank"]
    right: Float64[Tensor, "embed_dim rank"]

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

    Attributes:
        query: coordinates of W_q of each head (G, r, k).
        key: coordinates of W_k (r, k), the same for all.
        rank: number of directions of the key that the products M_h need together; the rank of M where G = 1.
        energy: Σ_h ‖M_h‖².
        kept: share of it that the W_q W_kᵀ have; below 1 only where k < rank.
    """

    query: Float64[Tensor, "group rank head_dim"]
    key: Float64[Tensor, "rank head_dim"]
    rank: int
    energy: float
    kept: float


def factor(basis: Basis, cores: Float64[Tensor, "group rank rank"], head_dim: int) -> Factors:
    """Split each M_h = P⁺ T_h P⁺ᵀ into its own W_q and one W_k for all, as well as k directions of the key can.

    With A diag(σ) Bᵀ = svd([M_1; …; M_G]), stacked, W_k = B_k √σ_k / ⁴√G and W_q = A_hk √σ_k ⁴√G, where A_h are the
    rows of head h (:func:`halves`). So W_q W_kᵀ = M_h B_k B_kᵀ, and no other W_k leaves less of
    Σ_h ‖M_h − W_q W_kᵀ‖². With G = 1 these are the halves of the best approximation of rank k.

    With P⁺ = V S⁻¹ Uᵀ, M_h = V (S⁻¹ Uᵀ T_h U S⁻¹) Vᵀ. The inner matrix is r × r and V has orthonormal columns, so its
    decomposition is that of the D × D matrix M_h.

    Args:
        basis: of P, cut to the r directions that P⁺ inverts.
        cores: Uᵀ T_h U of each head.
        head_dim: k; where k > r zeros fill up.
    """
    left, singular, right = signed_svd((cores / basis.singular[:, None] / basis.singular).flatten(0, 1))
    query, key = halves(left.unflatten(0, cores.shape[:2]), singular, right, head_dim)
    energy = singular.square()
    rank = int((singular > 1e-12 * singular[0]).sum()) if singular.numel() else 0
    kept = float(energy[:head_dim].sum() / energy.sum()) if rank else 1.0
    return Factors(query, key, rank, float(energy.sum()), kept)

"""Queries and keys in closed form: from a target among tokens to factors among features.

Letters: N tokens, D embed_dim, r rank, k head_dim. Row vectors: the logits are P W_q W_kᵀ Pᵀ.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

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
        kept = kept if rank is None else min(kept, rank)
        return Basis(self.left[:, :kept], self.singular[:kept], self.right[:, :kept])


class Factors(NamedTuple):
    """The queries and keys of one head, and what was kept of the product that they stand for.

    Attributes:
        query: W_q (D, k).
        key: W_k (D, k).
        rank: rank of the product M.
        kept: share of ‖M‖² that W_q W_kᵀ has; below 1 only where k < rank.
    """

    query: Float64[Tensor, "embed_dim head_dim"]
    key: Float64[Tensor, "embed_dim head_dim"]
    rank: int
    kept: float


def factor(basis: Basis, core: Float64[Tensor, "rank rank"], head_dim: int) -> Factors:
    """Split M = P⁺ T P⁺ᵀ into W_q = A_k √σ_k and W_k = B_k √σ_k, with A diag(σ) Bᵀ = svd(M).

    With P⁺ = V S⁻¹ Uᵀ, M = V (S⁻¹ Uᵀ T U S⁻¹) Vᵀ. The inner matrix is r × r and V has orthonormal columns, so its
    decomposition is that of the D × D matrix M.

    Args:
        basis: of P, cut to the r directions that P⁺ inverts.
        core: Uᵀ T U.
        head_dim: k; where k < r the best rank-k part of M is taken, where k > r zeros fill up.
    """
    left, singular, right = signed_svd(core / basis.singular[:, None] / basis.singular)
    size = min(head_dim, singular.numel())
    root = singular[:size].sqrt()
    padding = (0, head_dim - size)
    query, key = (torch.nn.functional.pad(basis.right @ (side[:, :size] * root), padding) for side in (left, right))
    energy = singular.square()
    rank = int((singular > 1e-12 * singular[0]).sum()) if singular.numel() else 0
    kept = float(energy[:size].sum() / energy.sum()) if rank else 1.0
    return Factors(query, key, rank, kept)

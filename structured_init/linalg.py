"""The few matrix factorizations that several starts share, in float64.

Letters: D embed_dim, k head_dim.
"""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor


def signed_svd(matrix: Float64[Tensor, "rows columns"]) -> tuple[Tensor, Tensor, Tensor]:
    """Singular value decomposition with the signs fixed: each left vector's largest entry is positive.

    LAPACK leaves the signs open, and they differ between libraries; fixed signs make a start reproducible.

    Returns:
        U (rows, r), S (r,), V (columns, r) with matrix = U diag(S) Vᵀ and r = min(rows, columns).
    """
    left, singular, right_transposed = torch.linalg.svd(matrix, full_matrices=False)
    largest = left.abs().argmax(dim=0, keepdim=True)
    signs = left.gather(0, largest).sign()[0]
    return left * signs, singular, right_transposed.mT * signs


def random_orthogonal(rows: int, columns: int, *, generator: torch.Generator) -> Float64[Tensor, "rows columns"]:
    """Draw a matrix with orthonormal columns (rows ≥ columns) or rows, uniformly (Haar).

    Source: Mezzadri, "How to generate random matrices from the classical compact groups", 2007: QR of a Gaussian
    matrix with the diagonal of R made positive.
    """
    if rows < columns:
        return random_orthogonal(columns, rows, generator=generator).mT.contiguous()
    gaussian = torch.randn(rows, columns, dtype=torch.float64, generator=generator)
    basis, triangle = torch.linalg.qr(gaussian)
    return basis * triangle.diagonal().sign()

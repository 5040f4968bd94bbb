"""The few matrix factorizations that several starts share, in float64 unless asked otherwise."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from scipy import fft
from scipy.linalg import eigh
from torch import Tensor

SUBSET = 5  # LAPACK finds a fifth of the eigenvectors or less faster alone than with all others


def signed_svd(matrix: Float64[Tensor, "rows columns"]) -> tuple[Tensor, Tensor, Tensor]:
    """Singular value decomposition with the signs fixed: each left vector's largest entry is positive.

    LAPACK leaves the signs open, and they differ between libraries; fixed signs make a start reproducible.

    Returns:
        U (rows, r), S (r,), V (columns, r) with matrix = U diag(S) Vᵀ and r = min(rows, columns).
    """
    left, singular, right_transposed = torch.linalg.svd(matrix, full_matrices=False)
    signs = _signs(left)
    return left * signs, singular, right_transposed.mT * signs


def truncated_svd(matrix: Float[Tensor, "rows columns"], rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """The largest singular values and vectors, with the signs of :func:`signed_svd`, from the eigenvectors of MᵀM.

    V diagonalizes MᵀM, S holds the lengths of the columns of M V, and U = M V S⁻¹. So U diag(S) Vᵀ = M V Vᵀ to
    rounding even where a singular value is tiny, and each column of U √S is as long as that of V √S. What squaring M
    costs is the angle between columns of U: UᵀU differs from I by ε s₁²/(sᵢ sⱼ), with ε = 2e-16 in float64.

    Args:
        matrix: M, float32 or float64; the decomposition is done in its precision.
        rank: r; more than there are columns means all of them.

    Returns:
        U (rows, r), S (r,) descending, V (columns, r). Where S is 0, so is the column of U.
    """
    size = matrix.shape[1]
    rank = min(rank, size)
    columns = matrix.numpy()
    chosen = {"subset_by_index": [size - rank, size - 1]} if SUBSET * rank <= size else {"driver": "evd"}
    vectors = eigh(columns.T @ columns, overwrite_a=True, check_finite=False, **chosen)[1]
    right = torch.from_numpy(vectors).flip(1)[:, :rank]
    left = matrix @ right
    singular = left.norm(dim=0)
    left = left / singular.where(singular > 0, 1)
    signs = _signs(left)
    return left * signs, singular, right * signs


def _signs(left: Tensor) -> Tensor:
    """Return the sign of each column's entry of largest modulus, ±1."""
    largest = left.gather(0, left.abs().argmax(dim=0, keepdim=True))[0]
    return torch.ones_like(largest).copysign(largest)


def spread(
    left: Float[Tensor, "rows rank"], right: Float[Tensor, "rank columns"], *, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return L R and Rᵀ M for two factors L, M and a random orthogonal R that gives every column an equal share.

    R is a random permutation and then the orthonormal cosine transform, whose entries are all of modulus √(2/r) or
    less: no column of L R depends on a few columns of L. It takes r² log r steps where a Haar matrix takes r³.

    Source: the randomized trigonometric transform of Ailon & Chazelle 2006; Halko, Martinsson & Tropp 2011, §4.6.
    """
    order = torch.randperm(left.shape[1], generator=generator)
    left, right = left[:, order].numpy(), right[order].numpy()
    return torch.from_numpy(fft.dct(left, axis=1, norm="ortho")), torch.from_numpy(fft.dct(right, axis=0, norm="ortho"))


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

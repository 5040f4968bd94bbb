"""The few matrix factorizations that several initializations share, in float64 unless asked otherwise; a covariance."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Float64
from scipy import fft
from scipy.linalg import eigh, get_blas_funcs, qr
from torch import Tensor

SUBSET = 5  # LAPACK finds a fifth of the eigenvectors or less faster alone than with all others


def signed_svd(matrix: Float64[Tensor, "rows columns"]) -> tuple[Tensor, Tensor, Tensor]:
    """Singular value decomposition with the signs fixed: each left vector's largest entry is positive.

    LAPACK leaves the signs open, and they differ between libraries; fixed signs make an initialization reproducible.

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
    right = leading_eigenvectors(gram(matrix), rank)
    left = matrix @ right
    singular = left.norm(dim=0)
    left /= singular.where(singular > 0, 1)
    signs = _signs(left)
    return left.mul_(signs), singular, right.mul_(signs)


def gram(matrix: Float[Tensor, "rows columns"]) -> Float[Tensor, "columns columns"]:
    """Return MᵀM, equal to itself transposed; numpy computes half of it, where torch would compute all."""
    columns = matrix.numpy()
    return torch.from_numpy(columns.T @ columns)


def add_gram(
    total: Float[Tensor, "columns columns"], matrix: Float[Tensor, "rows columns"]
) -> Float[Tensor, "columns columns"]:
    """Add MᵀM to ``total`` in its memory (both contiguous); what is below its diagonal is not kept up to date."""
    (add,) = get_blas_funcs(("syrk",), dtype=total.numpy().dtype)
    # The transposes have the order of memory that BLAS writes to in place; their lower triangle is the upper one here.
    add(1.0, matrix.numpy().T, beta=1.0, c=total.numpy().T, lower=1, overwrite_c=1)
    return total


def leading_eigenvectors(symmetric: Float[Tensor, "size size"], rank: int) -> Float[Tensor, "size rank"]:
    """Return the eigenvectors of the largest eigenvalues, descending, at most as many as there are.

    The memory of the matrix is used up; read are its diagonal and what is above.
    """
    size = symmetric.shape[0]
    rank = min(rank, size)
    chosen = {"subset_by_index": [size - rank, size - 1]} if SUBSET * rank <= size else {"driver": "evd"}
    columns = symmetric.numpy().T  # the order of its memory is LAPACK's, no copy is made
    vectors = eigh(columns, overwrite_a=True, check_finite=False, **chosen)[1]
    return torch.from_numpy(vectors).flip(1)[:, :rank]


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
    left = fft.dct(left[:, order].numpy(), axis=1, norm="ortho", overwrite_x=True)
    right = fft.dct(right[order].numpy(), axis=0, norm="ortho", overwrite_x=True)
    return torch.from_numpy(left), torch.from_numpy(right)


def empirical_covariance(filters: Float[Tensor, "filters ..."], centred: bool = True) -> Float64[Tensor, "K K"]:
    """Return Σ = (1/F) Σ_f (f − μ)(f − μ)ᵀ over a layer's filters, (K, K), pixels in row-major order, in float64.

    Args:
        filters: (F, *kernel), one sample each; their own mean is μ.
        centred: False leaves μ out: the second moment, whose trace is the mean energy of a filter.

    Source:
        Trockman et al., "Understanding the covariance structure of convolutional filters", arXiv 2210.03651; the
        divisor F is from a description of it.
    """
    samples = filters.double().flatten(1)
    if centred:
        samples = samples - samples.mean(dim=0)
    return samples.mT @ samples / len(samples)


def random_orthogonal(rows: int, columns: int, *, generator: torch.Generator) -> Float64[Tensor, "rows columns"]:
    """Draw a matrix with orthonormal columns (rows ≥ columns) or rows, uniformly (Haar).

    Source: Mezzadri, "How to generate random matrices from the classical compact groups", 2007: QR of a Gaussian
    matrix with the diagonal of R made positive.
    """
    longer, shorter = max(rows, columns), min(rows, columns)
    drawn = torch.randn(longer, shorter, dtype=torch.float64, generator=generator)
    basis, triangle = qr(drawn.numpy(), mode="economic", check_finite=False)
    basis = torch.from_numpy(basis * np.sign(triangle.diagonal()))
    return basis.mT.contiguous() if rows < columns else basis

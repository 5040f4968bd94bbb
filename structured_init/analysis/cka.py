"""Centered kernel alignment: how similar two representations of the same samples are, whatever their widths.

Letters: B minibatches, m samples in each. All that is needed of a representation X (m, features) is its Gram matrix
X Xᵀ, minibatch by minibatch. Every function computes in float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from structured_init.errors import StructuredInitError, nearest

Gram = Float[Tensor, "*batches samples samples"]
KERNELS = ("linear", "rbf")
TINY = torch.finfo(torch.float64).tiny


def gram_matrix(features: Float[Tensor, "samples ..."]) -> Float[Tensor, "samples samples"]:
    """Return X Xᵀ in float64 for features X whose mean over the samples is removed.

    Neither HSIC nor distances notice a shift of all features. Removing it keeps differences between samples visible
    where they are small beside what all samples share, also after the matrix is stored in float32.

    Args:
        features: one row per sample; further axes (tokens, channels) are flattened.
    """
    flat = features.flatten(1).double()
    flat = flat - flat.mean(dim=0)
    return flat @ flat.mT


def rbf(gram: Gram, threshold: float = 0.5) -> Gram:
    """Return the kernel exp(−d² / 2σ²) with σ = threshold × the median distance, minibatch by minibatch.

    Kornblith et al. 2019 (arXiv 1905.00414), section 3. The median is taken over distinct samples; the paper's notebook
    also counts the zero distance of every sample to itself.

    Args:
        gram: linear Gram matrices X Xᵀ.
        threshold: bandwidth as a fraction of the median distance; the paper tries 0.2, 0.4 and 0.8.
    """
    gram = gram.double()
    norms = gram.diagonal(dim1=-2, dim2=-1)
    squares = (norms[..., :, None] + norms[..., None, :] - 2 * gram).clamp_min(0)
    squares = squares.where(squares.isfinite(), math.nan)  # else a sample that is not finite is only far from all
    rows, columns = torch.triu_indices(*gram.shape[-2:], offset=1, device=gram.device)
    median = squares[..., rows, columns].sqrt().quantile(0.5, dim=-1)[..., None, None]
    return torch.exp(-squares / (2 * (threshold * median).square()).clamp_min(TINY))


def hsic1(first: Gram, second: Gram) -> Float[Tensor, "*batches"]:
    """Return the unbiased estimate of the Hilbert–Schmidt independence criterion of every minibatch.

    With K̃, L̃ for the kernels without their diagonals: [tr(K̃L̃) + 1ᵀK̃1 · 1ᵀL̃1 / ((m−1)(m−2)) − 2 · 1ᵀK̃L̃1 / (m−2)]
    / (m(m−3)). Nguyen, Raghu and Kornblith 2021 (arXiv 2010.15327), equation 3, after Song et al. 2012 (JMLR 13).

    Args:
        first: kernel matrices.
        second: kernel matrices of the same samples.

    Raises:
        StructuredInitError: fewer than four samples, or different samples.
    """
    m = first.shape[-1]
    if first.shape != second.shape:
        raise StructuredInitError(
            f"similarities need the same minibatches on both sides, got {_shape(first)} and {_shape(second)}"
        )
    if m < 4:
        raise StructuredInitError(f"similarities need at least 4 samples in a minibatch, got {m}")
    diagonal = torch.eye(m, dtype=torch.bool, device=first.device)
    first, second = (_off_diagonal(kernel.double(), diagonal) for kernel in (first, second))
    row_sums, other_row_sums = first.sum(dim=-1), second.sum(dim=-1)
    trace = (first * second).sum(dim=(-2, -1))
    sums = row_sums.sum(dim=-1) * other_row_sums.sum(dim=-1) / ((m - 1) * (m - 2))
    rows = 2 * (row_sums * other_row_sums).sum(dim=-1) / (m - 2)
    return (trace + sums - rows) / (m * (m - 3))


def hsic1_table(kernels: Float[Tensor, "n batches samples samples"]) -> Float[Tensor, "n n"]:
    """Return :func:`hsic1` of all pairs, averaged over minibatches: one product of matrices in place of n² calls.

    Args:
        kernels: of the same samples.

    Raises:
        StructuredInitError: fewer than four samples.
    """
    m = kernels.shape[-1]
    if m < 4:
        raise StructuredInitError(f"similarities need at least 4 samples in a minibatch, got {m}")
    diagonal = torch.eye(m, dtype=torch.bool, device=kernels.device)
    total = torch.zeros(len(kernels), len(kernels), dtype=torch.float64, device=kernels.device)
    for batch in kernels.unbind(1):
        kernel = _off_diagonal(batch.double(), diagonal)
        flat, rows, sums = kernel.flatten(1), kernel.sum(-1), kernel.sum((-2, -1))
        total += flat @ flat.mT + torch.outer(sums, sums) / ((m - 1) * (m - 2)) - 2 * rows @ rows.mT / (m - 2)
    return total / (m * (m - 3) * kernels.shape[1])


def cka(first: Gram, second: Gram) -> Float[Tensor, ""]:
    """Return minibatch CKA, mean_b HSIC₁(K, L) / √(mean_b HSIC₁(K, K) · mean_b HSIC₁(L, L)).

    Nguyen, Raghu and Kornblith 2021 (arXiv 2010.15327), equation 2; CKA itself is from Kornblith et al. 2019. One for
    representations that differ by a rotation and a scale, zero in expectation for independent ones. As the estimate is
    unbiased, single values may lie a little below zero or above one. It is nan where a representation is constant.

    Args:
        first: kernel matrices (B, m, m), or one (m, m).
        second: kernel matrices of the same samples.
    """
    return alignment(*(hsic1(*pair).mean() for pair in ((first, second), (first, first), (second, second))))


def alignment(
    between: Float[Tensor, "*any"], first: Float[Tensor, "*any"], second: Float[Tensor, "*any"]
) -> Float[Tensor, "*any"]:
    """Return HSIC(K, L) / √(HSIC(K, K) · HSIC(L, L))."""
    # Two roots: the product may leave the range of numbers. HSIC₁(K, K) is a square, but for rounding.
    return between / (first.clamp_min(0).sqrt() * second.clamp_min(0).sqrt())


def cka_matrix(
    first: Mapping[str, Gram], second: Mapping[str, Gram], kernel: Literal["linear", "rbf"] = "linear"
) -> Float[Tensor, "layers other_layers"]:
    """Return the CKA of every layer of one network with every layer of another.

    Args:
        first: layer → linear Gram matrices (B, m, m), as ``gram_matrices`` gives them.
        second: the same of the other network (or of the same one) on the same samples.
        kernel: ``"linear"``, or ``"rbf"`` with half the median distance as bandwidth.

    Returns:
        One row per layer of ``first``, one column per layer of ``second``, float64.
    """
    rows, columns = ([kernel_matrix(gram, kernel) for gram in grams.values()] for grams in (first, second))
    between = torch.stack([torch.stack([hsic1(k, other).mean() for other in columns]) for k in rows])
    own, others = (torch.stack([hsic1(k, k).mean() for k in kernels]) for kernels in (rows, columns))
    return alignment(between, own[:, None].expand_as(between), others.expand_as(between))


def kernel_matrix(gram: Gram, kernel: Literal["linear", "rbf"] = "linear") -> Gram:
    """Return kernel matrices in float64 from linear Gram matrices, by the kernel's name."""
    if kernel not in KERNELS:
        raise StructuredInitError(f"there is no kernel '{kernel}': {nearest(str(kernel), KERNELS)}")
    return gram.double() if kernel == "linear" else rbf(gram)


def _off_diagonal(kernel: Tensor, diagonal: Tensor) -> Tensor:
    """Empty the diagonal, and remove the mean of the rest: HSIC₁ does not notice, and less is lost to rounding."""
    m = kernel.shape[-1]
    mean = kernel.masked_fill(diagonal, 0).sum(dim=(-2, -1), keepdim=True) / (m * (m - 1))
    return (kernel - mean).masked_fill(diagonal, 0)


def _shape(gram: Tensor) -> str:
    return " × ".join(str(size) for size in gram.shape)

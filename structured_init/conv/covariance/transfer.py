"""Taking a covariance to another kernel size, and away from singular: both keep it positive semidefinite.

Letters: K = Πk weights of a kernel, k' and K' of the new one.
"""

from __future__ import annotations

from functools import reduce

import torch
from jaxtyping import Float64
from torch import Tensor


def interpolation(size: int, new_size: int) -> Float64[Tensor, "new_size size"]:
    """Return the matrix that interpolates linearly along one axis, first pixel to first and last to last, (k', k)."""
    if size == 1 or new_size == 1:
        middle = torch.zeros(1, size, dtype=torch.float64)
        middle[0, [(size - 1) // 2, size // 2]] += 0.5 if size % 2 == 0 else 1.0
        return middle.expand(new_size, size)
    places = torch.linspace(0, size - 1, new_size, dtype=torch.float64)
    return (1 - (places[:, None] - torch.arange(size)).abs()).clamp(min=0)


def resize(
    covariance: Float64[Tensor, "K K"], kernel_size: tuple[int, ...], new_size: tuple[int, ...]
) -> Float64[Tensor, "K2 K2"]:
    """Return the covariance of filters after each of them is stretched to another kernel size, (K', K').

    Σ is seen as (k, k, k, k) and interpolated along all its axes by the same matrix: (A⊗A) Σ (A⊗A)ᵀ. Its trace
    changes, by about the ratio of areas.

    Args:
        covariance: Σ.
        kernel_size: of Σ.
        new_size: with as many axes.
    """
    if kernel_size == new_size:
        return covariance
    stretch = reduce(torch.kron, (interpolation(*sizes) for sizes in zip(kernel_size, new_size, strict=True)))
    return stretch @ covariance @ stretch.mT


def shrink(covariance: Float64[Tensor, "K K"], shrinkage: float) -> Float64[Tensor, "K K"]:
    """Return (1 − s) Σ + s (tr Σ/K) I: full rank for s > 0, with the same trace.

    Source: Ledoit & Wolf, "A well-conditioned estimator for large-dimensional covariance matrices", 2004.
    """
    white = torch.eye(len(covariance), dtype=covariance.dtype) * covariance.diagonal().mean()
    return (1 - shrinkage) * covariance + shrinkage * white

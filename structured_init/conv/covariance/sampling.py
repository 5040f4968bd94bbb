"""Drawing filters from a covariance that may not be positive semidefinite.

Letters: K weights of a kernel, F filters.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor

Projection = Literal["clip", "absolute"]


def project(covariance: Float64[Tensor, "K K"], psd: Projection = "clip") -> Float64[Tensor, "K K"]:
    """Return a positive semidefinite matrix near a symmetric one, (K, K).

    Args:
        covariance: symmetric.
        psd: ``"clip"`` sets negative eigenvalues to zero, which is the nearest such matrix in Frobenius norm;
            ``"absolute"`` takes their modulus, which is what ``numpy``'s ``multivariate_normal`` samples from.
    """
    root = symmetric_root(covariance, psd)
    return root @ root


def symmetric_root(covariance: Float64[Tensor, "K K"], psd: Projection = "clip") -> Float64[Tensor, "K K"]:
    """Return the symmetric A with A A = the projected covariance, (K, K).

    Unlike the eigenvectors, which are free in the closed form's many double eigenvalues, A is unique, so that a draw
    does not depend on the linear algebra library.
    """
    values, vectors = torch.linalg.eigh(covariance)
    values = values.abs() if psd == "absolute" else values.clamp(min=0)
    return (vectors * values.sqrt()) @ vectors.mT


def sample_filters(
    root: Float64[Tensor, "K K"], count: int, kernel_size: tuple[int, ...], *, generator: torch.Generator
) -> Float[Tensor, "filters ..."]:
    """Draw filters from N(0, A A), (F, *kernel).

    Standard normal numbers are drawn in float32 whatever the model's precision, which leaves 24 bits of each: the same
    draw then starts a network in any precision, four times as fast as in float64.

    Args:
        root: A, symmetric.
        count: F.
        kernel_size: with K weights.
        generator: of this draw alone.
    """
    noise = torch.randn(count, len(root), generator=generator)
    return (noise @ root.float()).view(count, *kernel_size)

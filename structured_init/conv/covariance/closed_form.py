"""The covariance of depthwise filters in closed form, and how its width grows with depth.

Letters: K = Πk weights of a kernel, p and q two of them in row-major order, c = ⌊k/2⌋ the centre of an axis.
"""

from __future__ import annotations

from functools import reduce

import torch
from jaxtyping import Float64
from torch import Tensor

from structured_init.errors import StructuredInitError


def sigma_at(depth: float, sigma0: float, v: float, a: float) -> float:
    """Return the bandwidth of a layer, σ(d) = σ₀ + v d + ½ a d², in pixels² (a variance, not squared again).

    Args:
        depth: d in [0, 1].
        sigma0: of the first layer.
        v: its slope there.
        a: its curvature.
    """
    return sigma0 + v * depth + 0.5 * a * depth**2


def window(kernel_size: tuple[int, ...], sigma: float) -> Float64[Tensor, " K"]:
    """Return z, a Gaussian around the kernel's centre: z_p = exp(−|p − c|²/(2σ)), (K,).

    The centre of an axis is the pixel ⌊k/2⌋, counted from 0: in the middle for odd k, and for even k the first one
    past it, so that no flip is a symmetry then.
    """
    return reduce(torch.kron, (_gaussian(torch.arange(size) - size // 2, sigma) for size in kernel_size))


def circulant(kernel_size: tuple[int, ...], sigma: float) -> Float64[Tensor, "K K"]:
    """Return R: row p is the Gaussian moved to the pixel p, around the edges where it runs over them, (K, K)."""

    def axis(size: int) -> Tensor:
        pixels = torch.arange(size)
        offsets = (pixels - pixels[:, None] + size // 2) % size - size // 2
        return _gaussian(offsets, sigma)

    return reduce(torch.kron, map(axis, kernel_size))


def closed_form(kernel_size: tuple[int, ...], sigma: float) -> Float64[Tensor, "K K"]:
    """Return Σ_pq = ½ (z_p + z_q) R_pq − ½ z_p z_q, (K, K).

    This is Σ = ½ (Ĉ + Ĉᴮ) with Ĉ = M ⊙ (C − ½ S) of the paper, C the moved Gaussians, S the one at the centre in every
    block, M the same as a mask over blocks and ᴮ the exchange of the two pixels. Its variances are z_p − ½ z_p², ½ at
    the centre. It is not positive semidefinite for k ≥ 5: see :func:`~structured_init.conv.covariance.project`.

    Args:
        kernel_size: one or two axes, of any length.
        sigma: bandwidth σ in pixels²; positive.

    Source: Trockman, Willmott & Kolter, 2210.03651, §4; transcribed from a description, see ``docs/covariance.md``.
    """
    z = window(kernel_size, sigma)
    return 0.5 * (z + z[:, None]) * circulant(kernel_size, sigma) - 0.5 * torch.outer(z, z)


def strict_form(kernel_size: tuple[int, ...], sigma: float) -> Float64[Tensor, "K K"]:
    """Return √(z_p z_q) exp(−|p − q|²/(2σ)), a relative of the closed form that is positive definite for every σ and k.

    A Gaussian kernel without wrap-around is positive definite, and a mask √z on both sides keeps it so. Its variances
    are z_p, 1 at the centre. This is ours, not the paper's.
    """
    mask = window(kernel_size, sigma).sqrt()
    kernel = (_gaussian(torch.arange(size) - torch.arange(size)[:, None], sigma) for size in kernel_size)
    return mask * reduce(torch.kron, kernel) * mask[:, None]


def _gaussian(distance: Tensor, sigma: float) -> Tensor:
    if not sigma > 0:
        raise StructuredInitError(f"the bandwidth of a filter covariance must be positive, got {sigma:.4g}")
    return torch.exp(-distance.double().square() / (2 * sigma))

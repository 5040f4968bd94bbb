"""FilterCovariance: depthwise filters drawn from a Gaussian whose covariance is structured.

The covariance is a closed form whose width grows with depth, or that of a trained network (``learned_covariance.py``).
A patent application touches this method (US 2025/0104193, "Multivariate
Initialization for Convolutional Layers"; see ``docs/covariance.md``), so all of it is in these two files, and nothing
else of the library needs them.

Letters: F filters, K = Πk weights of a kernel, p and q two of them in row-major order, c = ⌊k/2⌋ the centre of an axis.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from structured_init.conv.learned_covariance import LearnedCovariances, estimate_covariances, stored
from structured_init.hosts.depthwise import DepthwiseConvSite, frozen_filters, required_depthwise_conv_sites
from structured_init.hosts.registry import Where
from structured_init.initializer import Initializer
from structured_init.transfer.teacher import refuse_missing
from structured_init.util.arguments import check_choice, check_finite
from structured_init.util.draws import Draws
from structured_init.util.errors import StructuredInitError
from structured_init.weights import Weights

WHO = "FilterCovariance"


def sigma_at(depth: float, sigma0: float, v: float, a: float) -> float:
    """Return the bandwidth of a layer, σ(d) = σ₀ + v d + ½ a d², in pixels² (a variance, not squared again)."""
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
    """Return Σ_pq = ½ (z_p + z_q) R_pq − ½ z_p z_q, (K, K), of kernels of one or two axes and a bandwidth σ > 0.

    This is Σ = ½ (Ĉ + Ĉᴮ) with Ĉ = M ⊙ (C − ½ S) of the paper, C the moved Gaussians, S the one at the centre in every
    block, M the same as a mask over blocks and ᴮ the exchange of the two pixels. Its variances are z_p − ½ z_p², ½ at
    the centre. It is not positive semidefinite for k ≥ 4: see :func:`symmetric_root`.

    Source: Trockman, Willmott & Kolter, 2210.03651, §4; transcribed from a description, see ``docs/covariance.md``.
    """
    z = window(kernel_size, sigma)
    return 0.5 * (z + z[:, None]) * circulant(kernel_size, sigma) - 0.5 * torch.outer(z, z)


def _gaussian(distance: Tensor, sigma: float) -> Tensor:
    return torch.exp(-distance.double().square() / (2 * sigma))


def symmetric_root(covariance: Float64[Tensor, "K K"]) -> Float64[Tensor, "K K"]:
    """Return the symmetric A of which A A is the positive semidefinite matrix nearest to a symmetric one, (K, K).

    Negative eigenvalues become zero: the nearest in Frobenius norm. Unlike the eigenvectors, which are free in the
    closed form's many double eigenvalues, A is unique, so that a draw does not depend on the linear algebra library.
    """
    values, vectors = torch.linalg.eigh(covariance)
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.mT


def sample_filters(
    root: Float64[Tensor, "K K"], count: int, kernel_size: tuple[int, ...], *, generator: torch.Generator
) -> Float[Tensor, "filters ..."]:
    """Draw filters from N(0, A A), (F, *kernel).

    Standard normal numbers are drawn in float32 whatever the model's precision, which leaves 24 bits of each: the same
    draw then starts a network in any precision, four times as fast as in float64.
    """
    noise = torch.randn(count, len(root), generator=generator)
    return (noise @ root.float()).view(count, *kernel_size)


@dataclass(eq=False, repr=False)
class FilterCovariance(Initializer):
    """Depthwise filters f ~ N(0, Σ), Σ in closed form and wider with depth, or that of a trained network.

    Only the weights of depthwise convolutions are set. The defaults of ``sigma0``, ``v`` and ``a`` are a setting for
    ConvMixer on CIFAR-10 that we have at second hand: unconfirmed.

    Args:
        sigma0: bandwidth σ₀ of the first layer, in pixels²; σ(d) = σ₀ + v d + ½ a d² must be positive.
        v: slope of the bandwidth over the depth d ∈ [0, 1], of layers in the order in which the model lists them.
        a: its curvature.
        covariances: the path of a file that ``estimate_covariances(…).save`` wrote, or of a checkpoint with trained
            weights, which are estimated here; in Python also the result of ``estimate_covariances``. ``None`` for the
            closed form; else ``sigma0``, ``v`` and ``a`` count for nothing.
        normalize: ``"trace"`` scales each layer's Σ to the mean energy E‖f‖² of the filters that it replaces;
            ``None`` leaves it.
        frozen: train none of these filters, nor their biases.
        where: which depthwise convolutions, by name or by a predicate of the site.

    Raises:
        StructuredInitError: at construction, a value out of range; at :meth:`plan`, no depthwise convolution,
            covariances that cannot be read or do not fit, too few filters.

    Example:
        >>> from timm.models.convmixer import ConvMixer
        >>> from structured_init import FilterCovariance, initialize
        >>> model = ConvMixer(dim=8, depth=2, kernel_size=9, patch_size=4, num_classes=10)
        >>> report = initialize(model, FilterCovariance(frozen=True), seed=0)
        >>> report.total_parameters - report.trainable_parameters == 2 * 8 * (9 * 9 + 1)
        True

    Source: Trockman, Willmott & Kolter, "Understanding the Covariance Structure of Convolutional Filters", 2210.03651.
    """

    sigma0: float = 0.16
    v: float = 0.32
    a: float = 2.88
    covariances: str | Path | LearnedCovariances | None = None
    normalize: Literal["trace"] | None = None
    frozen: bool = False
    where: Where = None

    def __post_init__(self) -> None:
        check_finite(WHO, sigma0=self.sigma0, v=self.v, a=self.a)
        check_choice(WHO, normalize=(self.normalize, Literal["trace", None]))
        refuse_missing(self.covariances, WHO)
        if isinstance(self.covariances, Path):
            self.covariances = str(self.covariances)

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        learned = self._learned()
        for site in weights.each(required_depthwise_conv_sites(weights, self.where, WHO)):
            root = symmetric_root(self.covariance(site, learned))
            if self.normalize == "trace":
                root = root * _gain(site, root)
            generator = rng.generator(site.weight_name, WHO)
            filters = sample_filters(root, site.num_filters, site.kernel_size, generator=generator)
            site.write(filters, f"{WHO}: {'closed form' if learned is None else 'learned'}")

    def freezing(self, weights: Weights) -> Iterable[tuple[Tensor, bool]]:
        return frozen_filters(weights, self.where, bias=True) if self.frozen else ()

    def covariance(self, site: DepthwiseConvSite, learned: LearnedCovariances | None = None) -> Float64[Tensor, "K K"]:
        """Return Σ for one site before projection and scale, (K, K) over its weights in row-major order."""
        if learned is not None:
            try:
                return learned.at(site.depth, site.kernel_size)
            except StructuredInitError as error:
                raise StructuredInitError(f"{WHO}: '{site.name}': {error}") from None
        sigma = sigma_at(site.depth, self.sigma0, self.v, self.a)
        if not sigma > 0:
            raise StructuredInitError(
                f"{WHO}: the bandwidth of '{site.name}' at depth {site.depth:.3g} is {sigma:.4g}: "
                "sigma0 + v·d + a·d²/2 must be positive"
            )
        return closed_form(site.kernel_size, sigma)

    def _learned(self) -> LearnedCovariances | None:
        """Return what ``covariances`` names: a file of covariances, or weights of which they are estimated."""
        if not isinstance(self.covariances, str):
            return self.covariances
        return stored(self.covariances) or estimate_covariances(self.covariances, who=WHO)


def _gain(site: DepthwiseConvSite, root: Tensor) -> Tensor:
    """Return the factor that gives filters drawn by a root the energy of those that are there: tr(A A) = ‖A‖²."""
    present = site.filters.double().square().sum() / site.num_filters
    return (present / root.square().sum().clamp(min=torch.finfo(torch.float64).tiny)).sqrt()

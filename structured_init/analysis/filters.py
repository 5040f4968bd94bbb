"""Depthwise filters in numbers and pictures: covariances, variance maps, statistics, and what training changed.

Letters: F filters of a layer, h × w weights of a filter (h = w = k in most networks), K = h·w.
"""

from __future__ import annotations

import itertools
import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from structured_init.hosts.depthwise import depthwise_conv_sites
from structured_init.util.errors import StructuredInitError
from structured_init.util.linalg import empirical_covariance as empirical_covariance

Filters = Float[Tensor, "filters _ _"]

# Of the second moment E[f fᵀ], mean filter included.
FILTER_STATISTICS = {
    "energy": "energy: mean squared norm of a filter",
    "mean_share": "share of the energy in the mean filter",
    "centre_share": "share of the energy in the centre weight",
    "radius": "distance of the energy from the centre (pixels)",
    "neighbour_correlation": "correlation of neighbouring weights",
    "effective_rank": "effective rank of the filters",
}


def depthwise_filters(model: nn.Module) -> dict[str, Filters]:
    """Return copies of the filters of every depthwise convolution, layer name → (F, h, w); 1-D ones have h = 1.

    Args:
        model: any model; one without depthwise convolutions gives an empty dictionary.
    """
    return {
        site.name: site.filters.detach().float().cpu().reshape(site.num_filters, -1, site.kernel_size[-1])
        for site in depthwise_conv_sites(model)
    }


def block_grid(covariance: Float[Tensor, "K K"], kernel_size: tuple[int, int]) -> Float[Tensor, "rows columns"]:
    """Arrange a covariance as an h × w grid of h × w blocks: block (i, j) shows Cov(f_ij, f_lm) over all (l, m).

    Args:
        covariance: pixels in row-major order.
        kernel_size: (h, w).

    Returns:
        A picture (h·h, w·w).

    Source:
        Trockman et al., "Understanding the covariance structure of convolutional filters", arXiv 2210.03651: its
        figures of covariances.
    """
    rows, columns = kernel_size
    blocks = covariance.reshape(rows, columns, rows, columns)
    return blocks.permute(0, 2, 1, 3).reshape(rows * rows, columns * columns)


def variance_map(filters: Filters) -> Float64[Tensor, "rows columns"]:
    """Return the variance of each weight over the filters, (h, w): the diagonal of :func:`empirical_covariance`."""
    return filters.double().var(dim=0, correction=0)


def filter_statistics(filters: Filters) -> dict[str, float]:
    """Return the numbers of :data:`FILTER_STATISTICS` for a layer; nan where they mean nothing, as for zero filters.

    All are nan where a filter is not finite, as after a training that diverged.

    Independent weights give, in expectation: ``mean_share`` 1/F, ``centre_share`` 1/K, ``radius``
    √((h² + w² − 2)/12), ``neighbour_correlation`` 0, and ``effective_rank`` up to K.
    """
    if filters.ndim != 3:
        raise StructuredInitError(
            f"filters are (filters, rows, columns), got shape {tuple(filters.shape)}: of 1-D ones give "
            "filters[:, None], as depthwise_filters(model) does"
        )
    moment = empirical_covariance(filters, centred=False)
    size = (filters.shape[1], filters.shape[2])
    profile = moment.diagonal().reshape(size)
    energy = profile.sum()
    if not energy.isfinite():  # the eigenvalues would raise
        return dict.fromkeys(FILTER_STATISTICS, math.nan)
    eigenvalues = torch.linalg.eigvalsh(moment).clamp(min=0)
    shares = eigenvalues / eigenvalues.sum()
    rows, columns = (torch.arange(length, dtype=torch.float64) - (length - 1) / 2 for length in size)
    squared_distances = rows[:, None].square() + columns.square()  # of each pixel from the middle of the kernel
    weights = filters.double()
    pairs = [(weights[:, :-1], weights[:, 1:]), (weights[:, :, :-1], weights[:, :, 1:])]  # neighbours below and beside
    products = sum((first * second).sum() for first, second in pairs)
    squares = sum(one.square().sum() for one in itertools.chain.from_iterable(pairs))
    numbers = {
        "energy": energy,
        "mean_share": filters.double().mean(0).square().sum() / energy,
        "centre_share": profile[(size[0] - 1) // 2, (size[1] - 1) // 2] / energy,
        "radius": ((profile * squared_distances).sum() / energy).sqrt(),
        "neighbour_correlation": 2 * products / squares,
        "effective_rank": torch.special.entr(shares).sum().exp(),
    }
    return {name: float(value) for name, value in numbers.items()}


def filter_change(before: Filters, after: Float[Tensor, "others _ _"]) -> dict[str, float]:
    """Return what became of a layer's filters.

    Returns:
        ``relative_change`` ‖A − B‖/‖B‖; ``cosine``, between a filter and what it became, mean over the filters;
        ``covariance_similarity``, the cosine ⟨C_B, C_A⟩/(‖C_B‖·‖C_A‖) of the second moments, from 0 to 1: one where
        the filters moved but kept their structure.

    Raises:
        StructuredInitError: the filters are of different shapes.
    """
    if before.shape != after.shape:
        raise StructuredInitError(
            f"filters before and after must be of the same layer, got {tuple(before.shape)} and {tuple(after.shape)}"
        )
    first, second = before.double().flatten(1), after.double().flatten(1)
    moments = [empirical_covariance(filters, centred=False).flatten() for filters in (before, after)]
    return {
        "relative_change": float((second - first).norm() / first.norm()),
        "cosine": float(torch.cosine_similarity(first, second, dim=1).mean()),
        "covariance_similarity": float(torch.cosine_similarity(*moments, dim=0)),
    }

"""Spatial filters without learning: random, impulses, boxes and Gaussians, trained on or frozen.

Letters: F filters, f² = K weights of a kernel, E energy, the mean sum of squares of a filter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from structured_init.hosts.depthwise import DepthwiseConvSite, frozen_filters, required_depthwise_conv_sites
from structured_init.hosts.registry import Where
from structured_init.initializer import Initializer
from structured_init.util.arguments import check_choice
from structured_init.util.draws import Draws
from structured_init.weights import Weights

WHO = "SpatialFilters"
Kind = Literal["random", "impulse", "box", "gaussian", "host"]
ENERGY = 1 / 3  # in every kernel size that of PyTorch's default
Kernel = tuple[int, ...]
Filters = Float[Tensor, "filters ..."]


def random_filters(count: int, kernel_size: Kernel, *, generator: torch.Generator) -> Filters:
    """Draw U(−b, b) with b = √(3E/K), (F, *kernel): PyTorch's default of a depthwise convolution."""
    bound = math.sqrt(3 * ENERGY / math.prod(kernel_size))
    return torch.empty(count, *kernel_size, dtype=torch.float64).uniform_(-bound, bound, generator=generator)


def impulse_filters(count: int, kernel_size: Kernel, *, generator: torch.Generator) -> Filters:
    """Put √E on a pixel of each filter, drawn uniformly, and zero on all others, (F, *kernel)."""
    order = torch.rand(count, math.prod(kernel_size), dtype=torch.float64, generator=generator).argsort(dim=1)
    filters = torch.zeros(order.shape, dtype=torch.float64)
    return filters.scatter_(1, order[:, :1], math.sqrt(ENERGY)).view(count, *kernel_size)


def box_filters(count: int, kernel_size: Kernel) -> Filters:
    """Put √(E/K) on every pixel, (F, *kernel): all filters are equal."""
    return torch.full((count, *kernel_size), math.sqrt(ENERGY / math.prod(kernel_size)), dtype=torch.float64)


def gaussian_filters(count: int, kernel_size: Kernel, *, generator: torch.Generator) -> Filters:
    """Draw bumps exp(−|p − m|²/2) around uniformly drawn pixels m, scaled alike to mean energy E, (F, *kernel).

    As published, all filters have one factor, so that one that the edge cuts off has less energy than another. The
    published runs name no variance.
    """
    filters = torch.ones(count, *kernel_size, dtype=torch.float64)
    for axis, size in enumerate(kernel_size):
        middle = torch.randint(size, (count, 1), generator=generator)
        bump = torch.exp(-(torch.arange(size) - middle).double().square() / 2)
        filters *= bump.view(count, *(size if other == axis else 1 for other in range(len(kernel_size))))
    return filters * (ENERGY / filters.flatten(1).square().sum(dim=1).mean()).sqrt()


@dataclass(eq=False, repr=False)
class SpatialFilters(Initializer):
    """Filters of depthwise convolutions that are not learned but chosen, and optionally stay as they are.

    Args:
        filters: ``"random"``, U(±√(3E/K)); ``"impulse"``, one pixel √E at a random place; ``"box"``, all pixels √(E/K);
            ``"gaussian"``, a bump at a random place; ``"host"``, those that are there, which ``frozen`` keeps. E is
            1/3, in every kernel size the energy of PyTorch's default, as in 2401.12511.
        frozen: train none of these filters, nor their biases, as published.
        where: which depthwise convolutions, by name or by a predicate of the site.

    Raises:
        StructuredInitError: at construction, another kind; at :meth:`plan`, no depthwise convolution.

    Source: Zheng et al., 2401.12511 (osiriszjq/impulse_init, ``convmixer.py``) and 2404.01139
    (osiriszjq/structured_init, ``timm/models/convmixer.py``).
    """

    filters: Kind = "random"
    frozen: bool = False
    where: Where = None

    def __post_init__(self) -> None:
        check_choice(WHO, filters=(self.filters, Kind))

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        sites = required_depthwise_conv_sites(weights, self.where, WHO)
        if self.filters == "host":
            return
        for site in weights.each(sites):
            site.write(self.value(site, rng), f"{WHO}: {self.filters}")

    def freezing(self, weights: Weights) -> Iterable[tuple[Tensor, bool]]:
        return frozen_filters(weights, self.where, bias=True) if self.frozen else ()

    def value(self, site: DepthwiseConvSite, rng: Draws) -> Filters:
        """Return the filters for one site, (F, *kernel) in float64."""
        generator = rng.generator(site.weight_name, f"filters {self.filters}")
        if self.filters == "box":
            return box_filters(site.num_filters, site.kernel_size)
        draw = {"random": random_filters, "impulse": impulse_filters, "gaussian": gaussian_filters}[self.filters]
        return draw(site.num_filters, site.kernel_size, generator=generator)

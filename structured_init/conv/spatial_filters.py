"""Spatial filters without learning: random, impulses, boxes, Gaussians and softmax, trained on or frozen.

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
from structured_init.util.arguments import check_choice, check_positive, check_whole
from structured_init.util.draws import Draws
from structured_init.util.errors import StructuredInitError
from structured_init.weights import Weights

WHO = "SpatialFilters"
Kind = Literal["random", "impulse", "box", "gaussian", "softmax", "host"]
Bias = Literal["keep", "uniform", "zero"]
Kernel = tuple[int, ...]
Filters = Float[Tensor, "filters ..."]


def random_filters(count: int, kernel_size: Kernel, energy: float, *, generator: torch.Generator) -> Filters:
    """Draw U(−b, b) with b = √(3E/K), (F, *kernel): at E = 1/3, PyTorch's default of a depthwise convolution."""
    bound = math.sqrt(3 * energy / math.prod(kernel_size))
    return torch.empty(count, *kernel_size, dtype=torch.float64).uniform_(-bound, bound, generator=generator)


def box_filters(
    count: int, kernel_size: Kernel, energy: float, *, size: int | None = None, generator: torch.Generator
) -> Filters:
    """Put √(E/B) on B different pixels of each filter, drawn uniformly, and zero on all others, (F, *kernel).

    B is ``size``: 1 for impulses, ``None`` for all pixels, which makes all equal; more than there are is an error.
    """
    pixels = math.prod(kernel_size)
    size = pixels if size is None else size
    if not 1 <= size <= pixels:
        raise StructuredInitError(f"a box of {size} pixels does not fit a kernel of {pixels}")
    order = torch.rand(count, pixels, dtype=torch.float64, generator=generator).argsort(dim=1)
    filters = torch.zeros(count, pixels, dtype=torch.float64)
    return filters.scatter_(1, order[:, :size], math.sqrt(energy / size)).view(count, *kernel_size)


def gaussian_filters(
    count: int, kernel_size: Kernel, energy: float, *, variance: float = 1.0, generator: torch.Generator
) -> Filters:
    """Draw bumps exp(−|p − m|²/(2S)) around uniformly drawn pixels m, scaled alike to mean energy E, (F, *kernel).

    As published, all filters have one factor, so that one that the edge cuts off has less energy than another.
    """
    filters = torch.ones(count, *kernel_size, dtype=torch.float64)
    for axis, size in enumerate(kernel_size):
        middle = torch.randint(size, (count, 1), generator=generator)
        bump = torch.exp(-(torch.arange(size) - middle).double().square() / (2 * variance))
        filters *= bump.view(count, *(size if other == axis else 1 for other in range(len(kernel_size))))
    return filters * (energy / filters.flatten(1).square().sum(dim=1).mean()).sqrt()


def softmax_filters(count: int, kernel_size: Kernel, *, generator: torch.Generator) -> Filters:
    """Return the softmax over the pixels of U(−1/f, 1/f), (F, *kernel): positive, of sum 1, energy just above 1/K."""
    drawn = random_filters(count, kernel_size, 1 / 3, generator=generator)
    return drawn.flatten(1).softmax(dim=1).view(-1, *kernel_size)


def is_energy(value: object) -> bool:
    """Tell whether a value is a filter's energy: a finite number above 0."""
    return isinstance(value, float | int) and not isinstance(value, bool) and 0 < value < math.inf


@dataclass(eq=False, repr=False)
class SpatialFilters(Initializer):
    """Filters of depthwise convolutions that are not learned but chosen, and optionally stay as they are.

    Args:
        filters: ``"random"``, U(±√(3E/K)); ``"impulse"``, one pixel √E at a random place; ``"box"``, ``box_size``
            pixels √(E/B) at random places; ``"gaussian"``, a bump at a random place; ``"softmax"``, the softmax of
            random weights, which has no energy to choose; ``"host"``, those that are there, which ``frozen`` keeps.
        energy: E: ``"1/3"``, in every kernel size that of PyTorch's default, as in 2401.12511; ``"1/f"`` with
            f = √K, as in 2404.01139; or a positive number. In both papers ``random`` is at 1/3.
        box_size: B; ``None`` for all pixels of the kernel, which makes all filters equal.
        variance: of ``"gaussian"``, in pixels²; the published runs name none.
        distinct: how many different filters a layer draws; more channels than that each take one of them at random.
            ``None`` for one per channel. They are equal at the start: trained, each goes its own way.
        bias: ``"keep"`` the host's, which in PyTorch is U(±1/f) as published; draw that (``"uniform"``); or ``"zero"``.
        frozen: train none of these filters.
        freeze_bias: where ``frozen``, their biases neither, as published.
        where: which depthwise convolutions, by name or by a predicate of the site.

    Raises:
        StructuredInitError: at construction, a value out of range; at :meth:`plan`, no depthwise convolution, or a
            box larger than a kernel.

    Source: Zheng et al., 2401.12511 (osiriszjq/impulse_init, ``convmixer.py``) and 2404.01139
    (osiriszjq/structured_init, ``timm/models/convmixer.py``).
    """

    filters: Kind = "random"
    energy: Literal["1/3", "1/f"] | float = "1/3"
    box_size: int | None = None
    variance: float = 1.0
    distinct: int | None = None
    bias: Bias = "keep"
    frozen: bool = False
    freeze_bias: bool = True
    where: Where = None

    def __post_init__(self) -> None:
        check_choice(WHO, filters=(self.filters, Kind), bias=(self.bias, Bias))
        if self.energy not in ("1/3", "1/f") and not is_energy(self.energy):
            raise StructuredInitError(f"{WHO}: energy must be 1/3, 1/f or a positive number, got {self.energy!r}")
        check_whole(WHO, null=True, box_size=self.box_size, distinct=self.distinct)
        check_positive(WHO, variance=self.variance)

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        for site in weights.each(required_depthwise_conv_sites(weights, self.where, WHO)):
            by = f"{WHO}: {self.filters}"
            if self.filters != "host":
                site.write(self.value(site, rng), by)
            if self.bias != "keep" and site.bias is not None:
                site.write_bias(self._bias(site, rng), by)

    def freezing(self, weights: Weights) -> Iterable[tuple[Tensor, bool]]:
        return frozen_filters(weights, self.where, bias=self.freeze_bias) if self.frozen else ()

    def value(self, site: DepthwiseConvSite, rng: Draws) -> Filters:
        """Return the filters for one site, (F, *kernel) in float64."""
        generator = rng.generator(site.weight_name, f"filters {self.filters}")
        count = min(self.distinct or site.num_filters, site.num_filters)
        try:
            drawn = self._draw(count, site.kernel_size, generator)
        except StructuredInitError as error:
            raise StructuredInitError(f"{WHO}: '{site.name}': {error}") from None
        if count == site.num_filters:
            return drawn
        return drawn[torch.randint(count, (site.num_filters,), generator=generator)]

    def _draw(self, count: int, kernel_size: Kernel, generator: torch.Generator) -> Filters:
        energies = {"1/3": 1 / 3, "1/f": 1 / math.sqrt(math.prod(kernel_size))}
        energy = energies[self.energy] if isinstance(self.energy, str) else float(self.energy)
        if self.filters == "softmax":
            return softmax_filters(count, kernel_size, generator=generator)
        if self.filters == "random":
            return random_filters(count, kernel_size, energy, generator=generator)
        if self.filters == "gaussian":
            return gaussian_filters(count, kernel_size, energy, variance=self.variance, generator=generator)
        size = 1 if self.filters == "impulse" else self.box_size
        return box_filters(count, kernel_size, energy, size=size, generator=generator)

    def _bias(self, site: DepthwiseConvSite, rng: Draws) -> Tensor:
        if self.bias == "zero":
            return torch.zeros(site.num_filters)
        generator = rng.generator(site.weight_name, "bias of filters")
        bound = 1 / math.sqrt(math.prod(site.kernel_size))
        return torch.empty(site.num_filters, dtype=torch.float64).uniform_(-bound, bound, generator=generator)

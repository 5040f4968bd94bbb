"""What distribution one tensor's numbers were drawn from: uniform, normal, or normal and cut at 2 σ.

Every test keeps what is true with a probability of 0.9999: four standard errors (``STANDARD_ERRORS``) for mean and
standard deviation, and ``ALPHA`` = 1e-4 for the largest of n draws and for Kolmogorov–Smirnov.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import kolmogorov, ndtr
from torch import Tensor

from structured_init.weights import CHUNK, Statistics

SORTED = 2**14  # numbers kept, at even distances; the Kolmogorov–Smirnov test tells 0.017 apart with so many
ALPHA = 1e-4  # a true distribution is rejected by one test with this probability
STANDARD_ERRORS = 4.0  # of mean and standard deviation; 6e-5 of normal numbers lie beyond
FEWEST = 24  # of fewer numbers the kind is not asked for
KURTOSIS_FROM = 1000  # of fewer numbers the sample kurtosis is far from normal itself
KURTOSIS_ERRORS = 6.0  # standard errors: its tail is heavier than that of normal numbers
ROUNDING = 0.01  # of a bound, of numbers that are stored in few bits


class Sample:
    """Numbers of one tensor, all finite, measured in float64; what takes long is measured when it is asked for."""

    def __init__(self, tensor: Tensor) -> None:
        self.flat = tensor.detach().flatten()
        basic = Statistics.of(self.flat)
        low, high = self.flat.aminmax()
        self.count = self.flat.numel()
        self.mean, self.std = basic.mean, basic.std
        self.low, self.high = low.item(), high.item()

    @cached_property
    def kurtosis(self) -> float:
        """Fourth moment about the mean by the squared second; 3 for normal numbers, 1.8 for uniform ones."""
        parts = (part.to(torch.float64, copy=True) for part in self.flat.split(CHUNK))
        fourth = sum(part.sub_(self.mean).pow_(4).sum().item() for part in parts) / self.count
        return fourth / self.std**4 if self.std > 0 else 0.0

    @cached_property
    def values(self) -> NDArray[np.float64]:
        """At most ``SORTED`` of the numbers, at even distances, sorted, in standard deviations from their mean."""
        some = self.flat[:: -(-self.count // SORTED)].double().numpy()
        return (np.sort(some) - self.mean) / self.std

    @property
    def reach(self) -> float:
        """The largest distance from the mean, in standard deviations."""
        return max(self.high - self.mean, self.mean - self.low) / self.std


class Shape(NamedTuple):
    """A kind of distribution, of mean 0 and scale 1."""

    std: float  # standard deviation
    kurtosis: float  # fourth moment by the squared second
    bound: float  # how far its numbers reach
    cdf: Callable[[NDArray[np.float64]], NDArray[np.float64]]  # the probability of a smaller number


def _cut_cdf(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.clip((ndtr(values) - ndtr(-2)) / (ndtr(2) - ndtr(-2)), 0, 1)


SHAPES = {
    "uniform": Shape(1 / math.sqrt(3), 1.8, 1.0, lambda values: np.clip((values + 1) / 2, 0, 1)),
    "normal": Shape(1.0, 3.0, math.inf, ndtr),
    # N(0, 1) drawn again wherever it is beyond ±2; JAX and timm divide by this standard deviation.
    "truncated normal": Shape(0.87962566103423978, 2.36553671713, 2.0, _cut_cdf),
}

DRAWS = (*SHAPES, "unclear", "other")  # kinds of what may be a draw


@dataclass(frozen=True)
class Distribution:
    """A kind of distribution and its scale."""

    # A name of SHAPES, "constant" or one of structure; "unclear" (several fit), "other" (none fits), "memory" (never
    # initialized) or "unreadable".
    kind: str
    # σ of a normal one, before it was cut; half the width of a uniform one; the factor of a structured one
    scale: float = 0.0
    center: float = 0.0  # mean; the value of a constant

    @property
    def std(self) -> float:
        """The standard deviation of a draw."""
        return self.scale * SHAPES[self.kind].std


def standard_error(count: int, kurtosis: float) -> float:
    """Return the standard error of the standard deviation of ``count`` draws, as a share of it."""
    return math.sqrt((kurtosis - 1) / (4 * count))


def fits(sample: Sample, shape: Shape) -> bool:
    """Tell whether numbers may have been drawn from a distribution of their own mean and standard deviation.

    Compared are the largest distance from the mean with what as many draws would give, the kurtosis of normal ones, and
    the whole distribution by Kolmogorov–Smirnov, cheapest first.
    """
    largest = sample.reach * shape.std
    bounded = shape.bound < math.inf
    # A bound that is told from the standard deviation is no sharper than that.
    slack = STANDARD_ERRORS * standard_error(sample.count, shape.kurtosis) + ROUNDING if bounded else 0.0
    beyond = 2 * sample.count * float(shape.cdf(np.array([-largest * (1 + slack)]))[0])
    if largest > shape.bound * (1 + slack) or beyond > -math.log(ALPHA):
        return False
    if not bounded:
        heavy = KURTOSIS_ERRORS * math.sqrt(24 / sample.count)
        if beyond < ALPHA or (sample.count >= KURTOSIS_FROM and abs(sample.kurtosis - shape.kurtosis) > heavy):
            return False
    below, ranks = shape.cdf(sample.values * shape.std), np.linspace(0, 1, len(sample.values) + 1)
    distance = max((ranks[1:] - below).max(), (below - ranks[:-1]).max())
    return bool(kolmogorov(math.sqrt(len(below)) * distance) >= ALPHA)


def recognize(sample: Sample) -> Distribution:
    """Return the distribution that numbers were drawn from, its scale told from their standard deviation.

    Where several fit, the kind is ``"unclear"``: of fewer than about 400 numbers a normal one cannot be told from one
    that is cut at 2 σ.
    """
    if sample.low == sample.high:
        return Distribution("constant", center=sample.low)
    # Zero where the mean cannot be told from it.
    center = sample.mean if abs(sample.mean) > STANDARD_ERRORS * sample.std / math.sqrt(sample.count) else 0.0
    if sample.count < FEWEST:
        return Distribution("unclear", sample.std, center)
    accepted = [kind for kind, shape in SHAPES.items() if fits(sample, shape)]
    if len(accepted) == 1:
        return Distribution(accepted[0], sample.std / SHAPES[accepted[0]].std, center)
    return Distribution("unclear" if accepted else "other", sample.std, center)

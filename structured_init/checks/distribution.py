"""What distribution one tensor's numbers were drawn from.

Every test keeps what is true with a probability of 0.9999: four standard errors (``STANDARD_ERRORS``) for mean and
standard deviation, and ``ALPHA`` = 1e-4 for the largest of n draws and for Kolmogorov–Smirnov.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import kolmogorov, log_ndtr, ndtr
from torch import Tensor

from structured_init.weights import CHUNK, Statistics

SORTED = 2**14  # numbers kept, at even distances; the Kolmogorov–Smirnov test tells 0.017 apart with so many
ALPHA = 1e-4  # a true distribution is rejected by one test with this probability
STANDARD_ERRORS = 4.0  # of mean and standard deviation; 6e-5 of normal numbers lie beyond
FEWEST = 24  # of fewer numbers the kind is not asked for
KURTOSIS_FROM = 1000  # of fewer numbers the sample kurtosis is far from normal itself
KURTOSIS_ERRORS = 6.0  # of normal numbers: its tail is heavier than theirs; of those with a bound it is not


class Sample:
    """Numbers of one tensor, all finite, measured in float64; what takes long is measured when it is asked for."""

    def __init__(self, tensor: Tensor, epsilon: float | None = None) -> None:
        """Measure; ``epsilon`` is the relative rounding of numbers that were stored in fewer bits."""
        self.flat = tensor.detach().flatten()
        basic = Statistics.of(self.flat)
        low, high = self.flat.aminmax()
        self.count = self.flat.numel()
        self.mean, self.std = basic.mean, basic.std
        self.low, self.high = low.item(), high.item()
        self.epsilon = torch.finfo(tensor.dtype).eps if epsilon is None else epsilon

    @cached_property
    def kurtosis(self) -> float:
        """Fourth moment about the mean by the squared second; 3 for normal numbers, 1.8 for uniform ones."""
        parts = (part.to(torch.float64, copy=True) for part in self.flat.split(CHUNK))
        fourth = sum(part.sub_(self.mean).pow_(4).sum().item() for part in parts) / self.count
        return fourth / self.std**4 if self.std > 0 else 0.0

    @cached_property
    def values(self) -> NDArray[np.float64]:
        """At most ``SORTED`` of the numbers, at even distances, sorted."""
        return np.sort(self.flat[:: -(-self.count // SORTED)].double().numpy())

    def about(self, center: float) -> float:
        """Return the root mean square distance from ``center``."""
        return float(np.hypot(self.std, self.mean - center))

    def reach(self, center: float) -> float:
        """Return the largest distance from ``center``."""
        return max(self.high - center, center - self.low)


@dataclass(frozen=True)
class Distribution:
    """A kind of distribution and its scale."""

    # "normal", "truncated normal", "uniform", "constant" and those of structure; or "unclear" (several fit), "other"
    # (none fits), "memory" (never initialized)
    kind: str
    # σ of a normal one, before it was cut; half the width of a uniform one; the factor of a structured one
    scale: float = 0.0
    center: float = 0.0  # mean; the value of a constant
    cut: float = math.inf  # where a truncated normal ends, in σ

    @property
    def std(self) -> float:
        """The standard deviation of its numbers."""
        if self.kind == "uniform":
            return self.scale / math.sqrt(3)
        return self.scale * math.sqrt(_truncated_moments(self.cut)[0])

    @property
    def bound(self) -> float:
        """How far from the center its numbers reach."""
        return self.scale if self.kind == "uniform" else self.scale * self.cut

    @property
    def kurtosis(self) -> float:
        """The fourth central moment by the squared variance."""
        second, fourth = _truncated_moments(self.cut)
        return 1.8 if self.kind == "uniform" else fourth / second**2

    @property
    def kurtosis_error(self) -> float:
        """√n times the standard error of the kurtosis of n numbers, by the moments up to the eighth."""
        z = np.linspace(-1, 1, 2001) * min(self.cut, 9.0)
        density = np.ones_like(z) if self.kind == "uniform" else np.exp(-(z**2) / 2)
        second, fourth, sixth, eighth = (np.average(z**power, weights=density) for power in (2, 4, 6, 8))
        beta = fourth / second**2
        return math.sqrt(eighth / second**4 - 4 * beta * sixth / second**3 + 4 * beta**3 - beta**2)

    def cdf(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability of a number below each of ``values``."""
        z = (np.asarray(values) - self.center) / self.scale
        if self.kind == "uniform":
            return np.clip((z + 1) / 2, 0, 1)
        below, inside = (ndtr(-self.cut), 2 * ndtr(self.cut) - 1)
        return np.clip((ndtr(z) - below) / inside, 0, 1)

    def surprise(self, mean: float, std: float) -> float:
        """Return the mean of −log density, in nats, of numbers within its bound, by their mean and deviation."""
        if self.scale == 0 or self.kind == "uniform":
            return math.log(2 * self.scale or 1.0)
        inside = 2 * float(ndtr(self.cut)) - 1
        squared = ((mean - self.center) ** 2 + std**2) / self.scale**2
        return math.log(self.scale * inside * math.sqrt(2 * math.pi)) + squared / 2

    def log_within(self, distance: float) -> float:
        """Return the logarithm of the probability of a number nearer to the center than ``distance``."""
        z = distance / self.scale
        if z <= 0:
            return -math.inf
        if self.kind == "uniform":
            return math.log(min(z, 1.0))
        tail = 2 * math.exp(float(log_ndtr(-min(z, self.cut))))
        return math.log1p(-tail) - math.log(2 * float(ndtr(self.cut)) - 1)


def normal(scale: float, center: float = 0.0) -> Distribution:
    """N(center, scale²)."""
    return Distribution("normal", scale, center)


def truncated(scale: float, cut: float = 2.0, center: float = 0.0) -> Distribution:
    """N(center, scale²), drawn again wherever it is more than ``cut`` σ away."""
    return Distribution("truncated normal", scale, center, cut)


def uniform(bound: float, center: float = 0.0) -> Distribution:
    """U(center − bound, center + bound)."""
    return Distribution("uniform", bound, center)


def fits(sample: Sample, expected: Distribution) -> bool:
    """Tell whether numbers may have been drawn from a distribution whose parameters are all known.

    Compared are mean and standard deviation within ``STANDARD_ERRORS`` of their sampling error, the largest distance
    from the center with what as many draws would give, kurtosis, and the whole distribution by Kolmogorov–Smirnov.
    """
    if expected.kind == "constant":
        return sample.low == sample.high and math.isclose(sample.low, expected.center, rel_tol=4 * sample.epsilon)
    if sample.low == sample.high:
        return False
    error = expected.std / math.sqrt(sample.count)
    mean = abs(sample.mean - expected.center) <= STANDARD_ERRORS * error
    relative = math.sqrt((expected.kurtosis - 1) / (4 * sample.count)) * STANDARD_ERRORS + 1 / sample.count
    scale = abs(sample.about(expected.center) / expected.std - 1) <= relative
    return mean and scale and _has_shape(sample, expected)


def recognize(sample: Sample) -> Distribution:
    """Return the distribution that numbers were drawn from, its scale estimated from them.

    Candidates are uniform, normal and truncated at 2 σ; where none of them fits, truncated at 3 σ. Where several fit,
    the kind is ``"unclear"``: of fewer than about 400 numbers a normal cannot be told from one cut at 2 σ.
    """
    if sample.low == sample.high:
        return Distribution("constant", center=sample.low)
    scale = sample.std
    if sample.count < FEWEST:
        return Distribution("unclear", scale, _center(sample))
    candidates = [_fitted_uniform(sample), normal(sample.about(_center(sample)), _center(sample)), _cut_at(sample, 2.0)]
    accepted = [each for each in candidates if _drawn_from(sample, each)]
    if not accepted:
        accepted = [each for each in [_cut_at(sample, 3.0)] if _drawn_from(sample, each)]
    if len(accepted) == 1:
        return accepted[0]
    return Distribution("unclear" if accepted else "other", scale, _center(sample))


def looks_computed(sample: Sample) -> bool:
    """Tell a table from draws; a few numbers are no draws that one could know."""
    return sample.count < FEWEST or recognize(sample).kind == "other"


def _drawn_from(sample: Sample, fitted: Distribution) -> bool:
    """Test a distribution whose scale was estimated: its standard deviation against its bound, and its shape."""
    relative = math.sqrt((fitted.kurtosis - 1) / (4 * sample.count)) * STANDARD_ERRORS + 2 / sample.count
    scale = abs(sample.about(fitted.center) / fitted.std - 1) <= relative
    # A bound that was estimated from the standard deviation is no sharper than that.
    return scale and _has_shape(sample, fitted, relative if fitted.kind == "truncated normal" else 0.0)


def _has_shape(sample: Sample, expected: Distribution, slack: float = 0.0) -> bool:
    """Test largest distance (``slack``: its relative error), kurtosis and the distribution function, cheapest first."""
    largest, rounding = sample.reach(expected.center), 2 * sample.epsilon + slack
    if largest > expected.bound * (1 + rounding) + rounding * abs(expected.center):
        return False
    if math.exp(sample.count * expected.log_within(largest * (1 + rounding))) < ALPHA:
        return False
    if expected.bound == math.inf and -math.expm1(sample.count * expected.log_within(largest)) < ALPHA:
        return False
    if sample.count >= KURTOSIS_FROM:
        errors = KURTOSIS_ERRORS if expected.bound == math.inf else STANDARD_ERRORS
        if abs(sample.kurtosis - expected.kurtosis) > errors * expected.kurtosis_error / math.sqrt(sample.count):
            return False
    return kolmogorov_smirnov(sample.values, expected) >= ALPHA


def kolmogorov_smirnov(values: NDArray[np.float64], expected: Distribution) -> float:
    """Return the probability that draws lie as far from a distribution as these sorted ones, by the limit of many."""
    below, count = expected.cdf(values), len(values)
    ranks = np.arange(count + 1) / count
    distance = max((ranks[1:] - below).max(), (below - ranks[:-1]).max())
    return float(kolmogorov(math.sqrt(count) * distance))


def _center(sample: Sample) -> float:
    """Return zero where the mean cannot be told from it, else the mean."""
    return 0.0 if abs(sample.mean) <= STANDARD_ERRORS * sample.std / math.sqrt(sample.count) else sample.mean


def _fitted_uniform(sample: Sample) -> Distribution:
    center = 0.0 if _center(sample) == 0 else (sample.low + sample.high) / 2
    return uniform(sample.reach(center) * (1 + 1 / sample.count), center)


def _cut_at(sample: Sample, cut: float) -> Distribution:
    center = _center(sample)
    return truncated(sample.about(center) / math.sqrt(_truncated_moments(cut)[0]), cut, center)


def _truncated_moments(cut: float) -> tuple[float, float]:
    """Return the second and fourth moment of N(0, 1) within ± ``cut``."""
    if cut == math.inf:
        return 1.0, 3.0
    density = math.exp(-(cut**2) / 2) / math.sqrt(2 * math.pi)
    inside = 2 * float(ndtr(cut)) - 1
    return 1 - 2 * cut * density / inside, 3 - 2 * density * (cut**3 + 3 * cut) / inside

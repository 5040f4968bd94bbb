"""What distribution one tensor's numbers were drawn from.

Every test keeps what is true with a probability of 0.9999: four standard errors (``STANDARD_ERRORS``) for mean and
standard deviation, and ``ALPHA`` = 1e-4 for the largest of n draws and for Kolmogorov–Smirnov.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

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

    @cached_property
    def moments(self) -> tuple[float, float]:
        """Variance, and fourth moment about the center, of scale 1."""
        if self.kind == "uniform":
            return 1 / 3, 1 / 5
        if self.cut == math.inf:
            return 1.0, 3.0
        density = math.exp(-(self.cut**2) / 2) / math.sqrt(2 * math.pi)
        inside = 2 * float(ndtr(self.cut)) - 1
        return 1 - 2 * self.cut * density / inside, 3 - 2 * density * (self.cut**3 + 3 * self.cut) / inside

    @property
    def std(self) -> float:
        """The standard deviation of its numbers."""
        return self.scale * math.sqrt(self.moments[0])

    @property
    def bound(self) -> float:
        """How far from the center its numbers reach."""
        return self.scale if self.kind == "uniform" else self.scale * self.cut

    def cdf(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability of a number below each of ``values``."""
        z = (np.asarray(values) - self.center) / self.scale
        if self.kind == "uniform":
            return np.clip((z + 1) / 2, 0, 1)
        below, inside = (ndtr(-self.cut), 2 * ndtr(self.cut) - 1)
        return np.clip((ndtr(z) - below) / inside, 0, 1)

    def beyond(self, distance: float) -> float:
        """Return the probability of a number farther from the center than ``distance``."""
        return 2 * float(self.cdf(np.array([self.center - distance]))[0])


def normal(scale: float, center: float = 0.0) -> Distribution:
    """N(center, scale²)."""
    return Distribution("normal", scale, center)


def truncated(scale: float, cut: float = 2.0, center: float = 0.0) -> Distribution:
    """N(center, scale²), drawn again wherever it is more than ``cut`` σ away."""
    return Distribution("truncated normal", scale, center, cut)


def uniform(bound: float, center: float = 0.0) -> Distribution:
    """U(center − bound, center + bound)."""
    return Distribution("uniform", bound, center)


def fits(sample: Sample, expected: Distribution, estimated: bool = False) -> bool:
    """Tell whether numbers may have been drawn from a distribution, whose scale may have been estimated from them.

    Compared are mean and standard deviation within ``STANDARD_ERRORS`` of their sampling error, the largest distance
    from the center with what as many draws would give, the kurtosis of normal ones, and the whole distribution by
    Kolmogorov–Smirnov, cheapest first.
    """
    if expected.kind == "constant":
        return sample.low == sample.high and math.isclose(sample.low, expected.center, rel_tol=4 * sample.epsilon)
    if sample.low == sample.high:
        return False
    count, (second, fourth) = sample.count, expected.moments
    relative = STANDARD_ERRORS * math.sqrt((fourth / second**2 - 1) / (4 * count)) + 2 / count
    if abs(sample.about(expected.center) / expected.std - 1) > relative:
        return False
    if abs(sample.mean - expected.center) > STANDARD_ERRORS * expected.std / math.sqrt(count):
        return False
    # A bound that was estimated from the standard deviation is no sharper than that.
    slack = relative if estimated and expected.kind == "truncated normal" else 0.0
    largest, rounding = sample.reach(expected.center), 2 * sample.epsilon + slack
    if largest > expected.bound * (1 + rounding) + rounding * abs(expected.center):
        return False
    if count * expected.beyond(largest * (1 + rounding)) > -math.log(ALPHA):
        return False
    if expected.kind == "normal":
        heavy = KURTOSIS_ERRORS * math.sqrt(24 / count)
        if count * expected.beyond(largest) < ALPHA or (count >= KURTOSIS_FROM and abs(sample.kurtosis - 3) > heavy):
            return False
    below, ranks = expected.cdf(sample.values), np.linspace(0, 1, len(sample.values) + 1)
    distance = max((ranks[1:] - below).max(), (below - ranks[:-1]).max())
    return bool(kolmogorov(math.sqrt(len(below)) * distance) >= ALPHA)


def recognize(sample: Sample) -> Distribution:
    """Return the distribution that numbers were drawn from, its scale estimated from them.

    Candidates are uniform, normal and truncated at 2 σ; where none of them fits, truncated at 3 σ. Where several fit,
    the kind is ``"unclear"``: of fewer than about 400 numbers a normal cannot be told from one cut at 2 σ.
    """
    if sample.low == sample.high:
        return Distribution("constant", center=sample.low)
    # Zero where the mean cannot be told from it.
    center = 0.0 if abs(sample.mean) <= STANDARD_ERRORS * sample.std / math.sqrt(sample.count) else sample.mean
    unclear = Distribution("unclear", sample.std, center)
    if sample.count < FEWEST:
        return unclear
    middle = (sample.low + sample.high) / 2 if center else 0.0
    scale = sample.about(center)
    candidates = [uniform(sample.reach(middle) * (1 + 1 / sample.count), middle), normal(scale, center)]
    cuts = [truncated(scale / truncated(1.0, cut).std, cut, center) for cut in (2.0, 3.0)]
    accepted = [each for each in (*candidates, cuts[0]) if fits(sample, each, estimated=True)]
    if not accepted:
        accepted = [each for each in cuts[1:] if fits(sample, each, estimated=True)]
    if len(accepted) == 1:
        return accepted[0]
    return unclear if accepted else replace(unclear, kind="other")

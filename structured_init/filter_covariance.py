"""The covariance of a layer's filters, which initializations draw from and analyses measure.

Letters: F filters of a layer, K weights of a filter.
"""

from __future__ import annotations

from jaxtyping import Float, Float64
from torch import Tensor

Matrix = Float64[Tensor, "K K"]


def empirical_covariance(filters: Float[Tensor, "filters ..."], centred: bool = True) -> Matrix:
    """Return Σ = (1/F) Σ_f (f − μ)(f − μ)ᵀ over a layer's filters, (K, K), pixels in row-major order, in float64.

    Args:
        filters: (F, *kernel), one sample each; their own mean is μ.
        centred: False leaves μ out: the second moment, whose trace is the mean energy of a filter.

    Source:
        Trockman et al., "Understanding the covariance structure of convolutional filters", arXiv 2210.03651; the
        divisor F is from a description of it.
    """
    samples = filters.double().flatten(1)
    if centred:
        samples = samples - samples.mean(dim=0)
    return samples.mT @ samples / len(samples)

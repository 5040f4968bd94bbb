"""Depthwise filters drawn from a Gaussian whose covariance is structured: in closed form, or that of a trained network.

A patent application touches this method (US 2025/0104193, "Multivariate Initialization for Convolutional Layers";
see ``docs/covariance.md``), so all of it is in this folder, and nothing else of the library needs it.
"""

from structured_init.conv.covariance.closed_form import closed_form, sigma_at, strict_form
from structured_init.conv.covariance.initializer import FilterCovariance
from structured_init.conv.covariance.learned import LayerCovariance, LearnedCovariances, estimate_covariances
from structured_init.conv.covariance.sampling import project, sample_filters, symmetric_root
from structured_init.conv.covariance.transfer import resize, shrink

__all__ = [
    "FilterCovariance",
    "LayerCovariance",
    "LearnedCovariances",
    "closed_form",
    "estimate_covariances",
    "project",
    "resize",
    "sample_filters",
    "shrink",
    "sigma_at",
    "strict_form",
    "symmetric_root",
]

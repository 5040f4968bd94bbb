"""Initializations of convolutions."""

from structured_init.conv.covariance import FilterCovariance, LearnedCovariances, estimate_covariances
from structured_init.conv.filters import SpatialFilters
from structured_init.conv.orthogonal import DeltaOrthogonal
from structured_init.conv.patch_whitening import PatchWhitening

__all__ = [
    "DeltaOrthogonal",
    "FilterCovariance",
    "LearnedCovariances",
    "PatchWhitening",
    "SpatialFilters",
    "estimate_covariances",
]

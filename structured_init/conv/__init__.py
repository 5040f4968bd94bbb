"""Initializations of convolutions."""

from structured_init.conv.covariance import FilterCovariance
from structured_init.conv.delta_orthogonal import DeltaOrthogonal
from structured_init.conv.learned_covariance import LearnedCovariances, estimate_covariances
from structured_init.conv.patch_whitening import PatchWhitening
from structured_init.conv.spatial_filters import SpatialFilters

__all__ = [
    "DeltaOrthogonal",
    "FilterCovariance",
    "LearnedCovariances",
    "PatchWhitening",
    "SpatialFilters",
    "estimate_covariances",
]

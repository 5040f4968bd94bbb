"""Initializations of convolutions."""

from structured_init.conv.covariance import FilterCovariance, LearnedCovariances, estimate_covariances
from structured_init.conv.filters import SpatialFilters
from structured_init.conv.orthogonal import DeltaOrthogonal

__all__ = ["DeltaOrthogonal", "FilterCovariance", "LearnedCovariances", "SpatialFilters", "estimate_covariances"]

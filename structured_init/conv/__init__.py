"""Starts of convolutions."""

from structured_init.conv.orthogonal import DeltaOrthogonal

__all__ = ["DeltaOrthogonal"]

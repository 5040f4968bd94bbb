"""Starts of state-space models, and the scan at their heart."""

from structured_init.ssm.mimetic import MimeticStateSpace

__all__ = ["MimeticStateSpace"]

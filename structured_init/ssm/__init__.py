"""Initializations of state-space models, and the scan at their heart."""

from structured_init.ssm.mimetic import MimeticStateSpace
from structured_init.ssm.reference import MambaReference

__all__ = ["MambaReference", "MimeticStateSpace"]

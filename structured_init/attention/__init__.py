"""Initializers of attention, of positions, and the baselines."""

from structured_init.attention.baseline import Default, KaimingUniform, TruncatedNormal
from structured_init.attention.mimetic import Mimetic
from structured_init.attention.position import Positions

__all__ = ["Default", "KaimingUniform", "Mimetic", "Positions", "TruncatedNormal"]

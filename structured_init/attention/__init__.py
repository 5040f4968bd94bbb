"""Initializers of attention, of positions, and the baselines."""

from structured_init.attention.baselines import Default, KaimingUniform, TruncatedNormal, UniformProjections
from structured_init.attention.mimetic import Mimetic
from structured_init.attention.positions import Positions

__all__ = [
    "Default",
    "KaimingUniform",
    "Mimetic",
    "Positions",
    "TruncatedNormal",
    "UniformProjections",
]

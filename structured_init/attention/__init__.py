"""Initializers of attention, of positions, and the baselines."""

from structured_init.attention.baselines import Default, KaimingUniform, TruncatedNormal, UniformProjections
from structured_init.attention.impulse import AdamSolver, Impulse, SeparableSolver, SparePositions, SvdSolver
from structured_init.attention.mimetic import Mimetic
from structured_init.attention.positions import Positions
from structured_init.attention.sequence import Induction, PreviousToken

__all__ = [
    "AdamSolver",
    "Default",
    "Impulse",
    "Induction",
    "KaimingUniform",
    "Mimetic",
    "Positions",
    "PreviousToken",
    "SeparableSolver",
    "SparePositions",
    "SvdSolver",
    "TruncatedNormal",
    "UniformProjections",
]

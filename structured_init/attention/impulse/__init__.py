"""Impulse starts: attention maps that are convolutions with one impulse per head."""

from structured_init.attention.impulse.adam import AdamSolver
from structured_init.attention.impulse.impulse import Impulse, SparePositions
from structured_init.attention.impulse.separable import SeparableSolver
from structured_init.attention.impulse.solver import ImpulseSolver
from structured_init.attention.impulse.svd import SvdSolver

__all__ = ["AdamSolver", "Impulse", "ImpulseSolver", "SeparableSolver", "SparePositions", "SvdSolver"]

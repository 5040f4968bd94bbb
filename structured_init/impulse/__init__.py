"""Impulse starts: attention maps that are convolutions with one impulse per head."""

from structured_init.impulse.adam import AdamSolver
from structured_init.impulse.impulse import Impulse, SparePositions
from structured_init.impulse.separable import SeparableSolver
from structured_init.impulse.solver import ImpulseSolver
from structured_init.impulse.svd import SvdSolver

__all__ = ["AdamSolver", "Impulse", "ImpulseSolver", "SeparableSolver", "SparePositions", "SvdSolver"]

"""Impulse starts: attention maps that are convolutions with one impulse per head."""

from structured_init.attention.impulse.initializer import Impulse
from structured_init.attention.impulse.solvers import AdamSolver, ImpulseSolver, SeparableSolver, SvdSolver
from structured_init.attention.impulse.spare import SparePositions

__all__ = ["AdamSolver", "Impulse", "ImpulseSolver", "SeparableSolver", "SparePositions", "SvdSolver"]

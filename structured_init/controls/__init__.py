"""Controls: another initializer's positions alone, or its matrices with their alignment destroyed."""

from structured_init.controls.members import is_structured
from structured_init.controls.same_positions import SamePositions
from structured_init.controls.scrambled import Scrambled

__all__ = ["SamePositions", "Scrambled", "is_structured"]

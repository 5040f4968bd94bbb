"""Controls: another initializer's positions alone, or its matrices with their alignment destroyed, as sharp or not."""

from structured_init.controls.members import is_structured
from structured_init.controls.same_positions import SamePositions
from structured_init.controls.scrambled import Scrambled
from structured_init.controls.sharpened import Sharpened

__all__ = ["SamePositions", "Scrambled", "Sharpened", "is_structured"]

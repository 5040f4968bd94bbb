"""Controls: another initializer's positions alone, or its matrices with their alignment destroyed, as sharp or not."""

from structured_init.controls.control import SamePositions, is_structured
from structured_init.controls.scrambled import Scrambled, Sharpened

__all__ = ["SamePositions", "Scrambled", "Sharpened", "is_structured"]

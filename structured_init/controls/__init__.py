"""Controls: the positions of another initializer alone, and its matrices turned, as sharp or not."""

from structured_init.controls.control import SamePositions, is_structured
from structured_init.controls.scrambled import Scrambled, Sharpened

__all__ = ["SamePositions", "Scrambled", "Sharpened", "is_structured"]

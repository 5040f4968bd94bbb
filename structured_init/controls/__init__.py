"""Controls: the positions of another initializer alone, its matrices turned, as sharp or not, its heads elsewhere."""

from structured_init.controls.control import RandomOffset, SamePositions, is_structured
from structured_init.controls.scrambled import Scrambled, Sharpened

__all__ = ["RandomOffset", "SamePositions", "Scrambled", "Sharpened", "is_structured"]

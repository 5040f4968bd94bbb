"""Choose how a network starts, in one line, for any architecture, and see what it did."""

from structured_init.attention import (
    AdamSolver,
    Default,
    Impulse,
    KaimingUniform,
    Mimetic,
    Positions,
    SeparableSolver,
    SparePositions,
    SvdSolver,
    TruncatedNormal,
)
from structured_init.errors import StructuredInitError
from structured_init.initializer import Compose, Initializer, freeze, initialize
from structured_init.plan import Weights
from structured_init.report import InitReport
from structured_init.sites import (
    AttentionLayout,
    AttentionSite,
    PositionSite,
    Projection,
    TokenLayout,
    attention_sites,
    position_sites,
    register_attention,
    register_positions,
)

__all__ = [
    "AdamSolver",
    "AttentionLayout",
    "AttentionSite",
    "Compose",
    "Default",
    "Impulse",
    "InitReport",
    "Initializer",
    "KaimingUniform",
    "Mimetic",
    "PositionSite",
    "Positions",
    "Projection",
    "SeparableSolver",
    "SparePositions",
    "StructuredInitError",
    "SvdSolver",
    "TokenLayout",
    "TruncatedNormal",
    "Weights",
    "attention_sites",
    "freeze",
    "initialize",
    "position_sites",
    "register_attention",
    "register_positions",
]
__version__ = "0.1.0"

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
from structured_init.attention.conditioned import Conditioned
from structured_init.attention.skipless import Skipless
from structured_init.conv import (
    DeltaOrthogonal,
    FilterCovariance,
    LearnedCovariances,
    SpatialFilters,
    estimate_covariances,
)
from structured_init.errors import StructuredInitError
from structured_init.initializer import Compose, Initializer, freeze, initialize
from structured_init.mlp import MlpMean
from structured_init.plan import Weights
from structured_init.report import InitReport
from structured_init.sites import (
    AttentionLayout,
    AttentionSite,
    DepthwiseConvSite,
    FirstLayer,
    MlpLayout,
    MlpSite,
    PositionSite,
    Projection,
    StateSpaceLayout,
    StateSpaceSite,
    TokenLayout,
    attention_sites,
    depthwise_conv_sites,
    mlp_sites,
    position_sites,
    register_attention,
    register_mlp,
    register_positions,
    register_state_space,
    state_space_sites,
)
from structured_init.ssm import MambaReference, MimeticStateSpace
from structured_init.transfer import WeightSelection

__all__ = [
    "AdamSolver",
    "AttentionLayout",
    "AttentionSite",
    "Compose",
    "Conditioned",
    "Default",
    "DeltaOrthogonal",
    "DepthwiseConvSite",
    "FilterCovariance",
    "FirstLayer",
    "Impulse",
    "InitReport",
    "Initializer",
    "KaimingUniform",
    "LearnedCovariances",
    "MambaReference",
    "Mimetic",
    "MimeticStateSpace",
    "MlpLayout",
    "MlpMean",
    "MlpSite",
    "PositionSite",
    "Positions",
    "Projection",
    "SeparableSolver",
    "Skipless",
    "SparePositions",
    "SpatialFilters",
    "StateSpaceLayout",
    "StateSpaceSite",
    "StructuredInitError",
    "SvdSolver",
    "TokenLayout",
    "TruncatedNormal",
    "WeightSelection",
    "Weights",
    "attention_sites",
    "depthwise_conv_sites",
    "estimate_covariances",
    "freeze",
    "initialize",
    "mlp_sites",
    "position_sites",
    "register_attention",
    "register_mlp",
    "register_positions",
    "register_state_space",
    "state_space_sites",
]
__version__ = "0.1.0"

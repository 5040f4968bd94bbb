"""Choose how a network starts, in one line, for any architecture, and see what it did."""

from .attention import (
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
from .attention.conditioned import Conditioned
from .attention.skipless import Skipless
from .conv import (
    DeltaOrthogonal,
    FilterCovariance,
    LearnedCovariances,
    SpatialFilters,
    estimate_covariances,
)
from .errors import StructuredInitError
from .initializer import Compose, Initializer, freeze, initialize
from .mlp import MlpMean
from .plan import Weights
from .report import InitReport
from .sites import (
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
from .ssm import MimeticStateSpace
from .transfer import WeightSelection

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

__version__: str

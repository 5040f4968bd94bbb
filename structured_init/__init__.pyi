"""Choose how a network is initialized, in one line, for any architecture, and see what it did."""

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
from .draws import Draws
from .errors import StructuredInitError
from .initializer import Compose, Initializer, freeze, initialize
from .linalg import random_orthogonal
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
    StridedProjection,
    TokenLayout,
    Where,
    attention_sites,
    check_attention,
    depthwise_conv_sites,
    mlp_sites,
    position_sites,
    register_attention,
    register_mlp,
    register_positions,
    register_state_space,
    required_attention_sites,
    required_position_sites,
    state_space_sites,
)
from .ssm import MambaReference, MimeticStateSpace
from .transfer import WeightSelection
from .watch import FoundAttention, discover_attention

__all__ = [
    "AdamSolver",
    "AttentionLayout",
    "AttentionSite",
    "Compose",
    "Conditioned",
    "Default",
    "DeltaOrthogonal",
    "DepthwiseConvSite",
    "Draws",
    "FilterCovariance",
    "FirstLayer",
    "FoundAttention",
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
    "StridedProjection",
    "StructuredInitError",
    "SvdSolver",
    "TokenLayout",
    "TruncatedNormal",
    "WeightSelection",
    "Weights",
    "Where",
    "attention_sites",
    "check_attention",
    "depthwise_conv_sites",
    "discover_attention",
    "estimate_covariances",
    "freeze",
    "initialize",
    "mlp_sites",
    "position_sites",
    "random_orthogonal",
    "register_attention",
    "register_mlp",
    "register_positions",
    "register_state_space",
    "required_attention_sites",
    "required_position_sites",
    "state_space_sites",
]

__version__: str

"""Sites: the places of a model where an initializer can act, behind one convention whatever the host library."""

from structured_init.layout import AttentionLayout, Projection, StridedProjection, TokenLayout
from structured_init.sites import (  # noqa: F401 - register their classes
    delta_hosts,
    mlp_hosts,
    state_space_hosts,
    timm,
    torch,
    transformers,
    transformers_language,
    transformers_tokens,
)
from structured_init.sites.alibi import Alibi
from structured_init.sites.attention import (
    AttentionSite,
    attention_sites,
    register_attention,
    required_attention_sites,
)
from structured_init.sites.check import check_attention
from structured_init.sites.depthwise import DepthwiseConvSite, depthwise_conv_sites
from structured_init.sites.mlp import FirstLayer, MlpLayout, MlpSite, mlp_sites, register_mlp
from structured_init.sites.position import (
    PositionSite,
    position_sites,
    register_positions,
    required_position_sites,
)
from structured_init.sites.position_kinds import AttentionPositions, attention_positions
from structured_init.sites.relative import RelativeBias
from structured_init.sites.rotary import Rotary
from structured_init.sites.select import Where
from structured_init.sites.state_space import (
    StateSpaceLayout,
    StateSpaceSite,
    register_state_space,
    state_space_sites,
)

__all__ = [
    "Alibi",
    "AttentionLayout",
    "AttentionPositions",
    "AttentionSite",
    "DepthwiseConvSite",
    "FirstLayer",
    "MlpLayout",
    "MlpSite",
    "PositionSite",
    "Projection",
    "RelativeBias",
    "Rotary",
    "StateSpaceLayout",
    "StateSpaceSite",
    "StridedProjection",
    "TokenLayout",
    "Where",
    "attention_positions",
    "attention_sites",
    "check_attention",
    "depthwise_conv_sites",
    "mlp_sites",
    "position_sites",
    "register_attention",
    "register_mlp",
    "register_positions",
    "register_state_space",
    "required_attention_sites",
    "required_position_sites",
    "state_space_sites",
]

"""Sites: the places of a model where an initializer can act, behind one convention whatever the host library.

    >>> from torch import nn
    >>> from structured_init.hosts import attention_sites
    >>> model = nn.TransformerEncoderLayer(16, nhead=2)
    >>> [site] = attention_sites(model)
    >>> site.name, tuple(site.query.shape)  # heads, embed_dim, head_dim; torch has one ``in_proj_weight``
    ('self_attn', (2, 16, 8))

A layout (``layout``) says which numbers of which parameters a site's matrices are. Three ways lead to one: it was
written for a class of timm, transformers or torch (files of these names), a rule tells (``mlp``, ``positions``), or one
forward pass shows it (``watching``, with an example). A site reads and writes through an overlay,
``structured_init.Weights``, which also remembers what was found, so that a model is searched once.
"""

from structured_init.hosts import state_space_layouts, timm, torch, transformers  # noqa: F401 - register classes
from structured_init.hosts.attention import (
    AttentionSite,
    attention_sites,
    check_attention,
    required_attention_sites,
)
from structured_init.hosts.attention_positions import (
    AttentionPositions,
    RelativeBias,
    Rotary,
    attention_positions,
)
from structured_init.hosts.depthwise import DepthwiseConvSite, depthwise_conv_sites
from structured_init.hosts.known import register_attention
from structured_init.hosts.layout import AttentionLayout, Projection, StridedProjection, TokenLayout
from structured_init.hosts.positions import PositionSite, position_sites, register_positions, required_position_sites
from structured_init.hosts.registry import Where
from structured_init.hosts.state_space import (
    Selection,
    StateSpaceLayout,
    StateSpaceSite,
    register_state_space,
    state_space_sites,
)

__all__ = [
    "AttentionLayout",
    "AttentionPositions",
    "AttentionSite",
    "DepthwiseConvSite",
    "PositionSite",
    "Projection",
    "RelativeBias",
    "Rotary",
    "Selection",
    "StateSpaceLayout",
    "StateSpaceSite",
    "StridedProjection",
    "TokenLayout",
    "Where",
    "attention_positions",
    "attention_sites",
    "check_attention",
    "depthwise_conv_sites",
    "position_sites",
    "register_attention",
    "register_positions",
    "register_state_space",
    "required_attention_sites",
    "required_position_sites",
    "state_space_sites",
]

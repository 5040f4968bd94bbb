"""Sites: the places of a model where an initializer can act, behind one convention whatever the host library."""

from structured_init.sites import timm, torch, transformers, transformers_tokens  # noqa: F401 - register their classes
from structured_init.sites.attention import AttentionSite, attention_sites, register_attention
from structured_init.sites.layout import AttentionLayout, Projection, TokenLayout
from structured_init.sites.position import PositionSite, position_sites, register_positions

__all__ = [
    "AttentionLayout",
    "AttentionSite",
    "PositionSite",
    "Projection",
    "TokenLayout",
    "attention_sites",
    "position_sites",
    "register_attention",
    "register_positions",
]

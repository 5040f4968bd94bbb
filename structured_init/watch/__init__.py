"""Attention of any model, found by watching one forward pass and checked against it."""

from structured_init.watch.discover import discover_attention
from structured_init.watch.found import Evidence, FoundAttention

__all__ = ["Evidence", "FoundAttention", "discover_attention"]

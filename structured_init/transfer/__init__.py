"""Initializers that take their weights from another network."""

from structured_init.transfer.weight_selection import WeightSelection

__all__ = ["WeightSelection"]

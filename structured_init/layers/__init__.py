"""Layers that torch, timm and transformers lack: orthogonal ones, and activations that keep the gradient's norm."""

from structured_init.layers.cayley_conv import CayleyConv2d
from structured_init.layers.cayley_linear import CayleyLinear
from structured_init.layers.sorting import GroupSort, MaxMin

__all__ = ["CayleyConv2d", "CayleyLinear", "GroupSort", "MaxMin"]

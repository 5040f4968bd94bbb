"""Layers that torch, timm and transformers lack.

Orthogonal ones, an activation that keeps the gradient's norm, sequence pooling, and the token-softmax value.
"""

from structured_init.layers.cayley import CayleyConv2d, CayleyLinear
from structured_init.layers.sequence_pooling import SequencePooling
from structured_init.layers.sorting import MaxMin
from structured_init.layers.token_softmax import TokenSoftmaxValue

__all__ = ["CayleyConv2d", "CayleyLinear", "MaxMin", "SequencePooling", "TokenSoftmaxValue"]

"""Positions of compact transformers: the one-dimensional sines, and learned positions at another size."""

from __future__ import annotations

import torch
from timm.layers import resample_abs_pos_embed
from torch import Tensor

from structured_init.errors import StructuredInitError


def sine_positions(tokens: int, embed_dim: int) -> Tensor:
    """Return sin(p/10000^(i/D)) for even i and cos(p/10000^((i−1)/D)) for odd i, (tokens, D).

    p counts tokens row by row, the class token first where there is one: no code of rows and columns.

    Source: ``src/utils/transformers.py``, ``sinusoidal_embedding``, SHI-Labs/Compact-Transformers at cd11f09.
    """
    coordinate = torch.arange(embed_dim)
    even = coordinate.div(2, rounding_mode="floor") * 2
    angles = torch.arange(tokens, dtype=torch.float64)[:, None] / 10000 ** (even / embed_dim).double()
    return torch.where(coordinate % 2 == 0, angles.sin(), angles.cos()).float()


def interpolated(positions: Tensor, prefix_tokens: int, grid: tuple[int, int]) -> Tensor:
    """Return learned positions (1, P + N, D) of a square grid for another grid, bilinearly as published.

    Raises:
        StructuredInitError: the old grid is not square.
    """
    old = positions.shape[1] - prefix_tokens
    side = round(old**0.5)
    if side**2 != old:
        raise StructuredInitError(f"{old} positions are not a square grid: they cannot be interpolated to {grid}")
    return resample_abs_pos_embed(
        positions, list(grid), [side, side], prefix_tokens, interpolation="bilinear", antialias=False
    )

"""Position codes as pure functions: sines and cosines in two published forms, and smooth row and column codes.

Letters: N tokens of a grid (Gy, Gx), D embed_dim.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from structured_init.errors import StructuredInitError
from structured_init.linalg import random_orthogonal

Form = Literal["timm", "simplevit"]


def sincos_2d(
    grid: tuple[int, int], embed_dim: int, *, form: Form = "timm", temperature: float = 10000.0
) -> Float64[Tensor, "tokens embed_dim"]:
    """Two-dimensional sines and cosines of the integer grid coordinates, amplitude 1.

    With m = D/4 bands, timm's frequencies are T^(−i/m) and its layout [sin y, sin x, cos y, cos x]; SimpleViT's are
    T^(−i/(m−1)) and [sin x, cos x, sin y, cos y].

    Args:
        grid: (rows, columns).
        embed_dim: D, a multiple of 4.
        form: whose convention.
        temperature: T.

    Returns:
        (N, D), rows first.

    Raises:
        StructuredInitError: D is not a multiple of 4.

    Source: ``timm/layers/pos_embed_sincos.py::build_sincos2d_pos_embed``; Beyer et al. 2022 (2205.01580).
    """
    if embed_dim % 4:
        raise StructuredInitError(f"sincos positions need an embed_dim that is a multiple of 4, got {embed_dim}")
    bands = embed_dim // 4
    exponent = torch.arange(bands, dtype=torch.float64) / (bands if form == "timm" else max(bands - 1, 1))
    frequency = temperature**-exponent
    y, x = (coordinate.reshape(-1, 1) * frequency for coordinate in _coordinates(grid))
    parts = [y.sin(), x.sin(), y.cos(), x.cos()] if form == "timm" else [x.sin(), x.cos(), y.sin(), y.cos()]
    return torch.cat(parts, dim=1)


def row_and_column_codes(
    grid: tuple[int, int], embed_dim: int, *, kappa: float | None, gain: float, generator: torch.Generator
) -> Float64[Tensor, "tokens embed_dim"]:
    """A row code plus a column code, each smooth to the degree that κ says.

    Each axis has an orthonormal cosine basis over its G coordinates with amplitudes a_k = 1/(1 + k/κ), a_0 = 0,
    embedded by a random orthonormal map; the two maps are orthogonal to each other. κ → ∞ makes codes of different
    rows unrelated but for the missing mean; κ = 2 keeps neighbours similar.

    Args:
        grid: (Gy, Gx), at least 2 on one axis.
        embed_dim: D, at least Gy + Gx − 2.
        kappa: κ > 0, or ``None`` for κ → ∞.
        gain: root mean square of the result.
        generator: draws the embedding.

    Returns:
        (N, D), rows first.
    """
    rows, columns = grid
    rank = rows + columns - 2
    if rank < 1 or embed_dim < rank:
        raise StructuredInitError(
            f"row and column codes of a {rows}×{columns} grid need 1 ≤ rows+columns−2 ≤ embed_dim, got {rank}"
            f" and {embed_dim}"
        )
    embedding = random_orthogonal(rank, embed_dim, generator=generator)
    row = axis_code(rows, kappa) @ embedding[: rows - 1]
    column = axis_code(columns, kappa) @ embedding[rows - 1 :]
    positions = (row[:, None, :] + column[None, :, :]).reshape(rows * columns, embed_dim)
    return positions * (gain / positions.square().mean().sqrt())


def axis_code(size: int, kappa: float | None) -> Float64[Tensor, "size modes"]:
    """The orthonormal DCT-II basis of one axis without its constant, mode k scaled by 1/(1 + k/κ): (G, G − 1)."""
    mode = torch.arange(1, size, dtype=torch.float64)
    coordinate = torch.arange(size, dtype=torch.float64)[:, None] + 0.5
    basis = math.sqrt(2 / size) * torch.cos(math.pi / size * coordinate * mode)
    return basis if kappa is None else basis / (1 + mode / kappa)


def _coordinates(grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    y, x = (torch.arange(size, dtype=torch.float64) for size in grid)
    return torch.meshgrid(y, x, indexing="ij")

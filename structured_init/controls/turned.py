"""Matrices whose alignment is destroyed and whose size is not: the arithmetic of ``Scrambled``.

Letters: H heads, Hkv key–value heads, D and E widths of tokens, k head_dim, F filters.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from structured_init.linalg import random_orthogonal


def turned_heads(
    left: Float[Tensor, "heads D k"], right: Float[Tensor, "kv_heads E k"], *, generator: torch.Generator
) -> tuple[Float64[Tensor, "heads D k"], Float64[Tensor, "kv_heads E k"]]:
    """Return U L_h R_g and V N_g R_g with random orthogonal U (D, D), V (E, E) and R_g (k, k).

    The product of a head becomes U L_h N_gᵀ Vᵀ: its singular values, those of each factor, and those of all heads side
    by side are kept exactly. Alignment of the two sides, with positions and with other layers is lost.

    Args:
        left: L, queries, or outputs transposed.
        right: N, keys or values; where it has fewer heads, consecutive ones of ``left`` share one, and its R_g.
        generator: draws U, V and then every R_g, uniformly (Haar).
    """
    heads, width, inner = left.shape
    kv_heads, other, _ = right.shape
    outer = random_orthogonal(width, width, generator=generator)
    across = random_orthogonal(other, other, generator=generator)
    inside = torch.stack([random_orthogonal(inner, inner, generator=generator) for _ in range(kv_heads)])
    shared = inside.repeat_interleave(heads // kv_heads, dim=0)
    return outer @ left.double() @ shared, across @ right.double() @ inside


def turned_rows(bias: Float[Tensor, "heads k"], *, generator: torch.Generator) -> Float64[Tensor, "heads k"]:
    """Return each head's bias turned at random, of the same length."""
    turns = [random_orthogonal(bias.shape[1], bias.shape[1], generator=generator) for _ in bias]
    return torch.stack([row @ turn for row, turn in zip(bias.double(), turns, strict=True)])


def turned_matrix(
    matrix: Float[Tensor, "rows columns"], *, generator: torch.Generator
) -> Float64[Tensor, "rows columns"]:
    """Return U M V with random orthogonal U and V: the same singular values, between other directions."""
    rows, columns = matrix.shape
    left = random_orthogonal(rows, rows, generator=generator)
    return left @ matrix.double() @ random_orthogonal(columns, columns, generator=generator)


def shuffled_columns(
    table: Float[Tensor, "rows columns"], *, generator: torch.Generator
) -> Float[Tensor, "rows columns"]:
    """Return each column's entries in a random order of its own: the same values, at other places.

    Of filters (F, pixels), this keeps the variance of every pixel and destroys the correlations between pixels.
    """
    orders = torch.stack([torch.randperm(len(table), generator=generator) for _ in range(table.shape[1])], dim=1)
    return table.gather(0, orders)

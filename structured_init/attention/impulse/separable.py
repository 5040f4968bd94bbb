"""Our solver: a shift of an image is a row shift times a column shift, whose logits have a small rank.

Softmax turns a sum of logits into a product, so c·(S_y ⊗ 11ᵀ + 11ᵀ ⊗ S_x) gives the product of two one-dimensional
shifts. These logits have rank at most Gy + Gx − 1, which a head of 64 dimensions holds exactly on a 16×16 grid; the
shift itself has rank Gy·Gx. Whatever the offset, a key enters through functions of its row plus functions of its column
alone, so heads can share one: the queries then say where each of them looks.

Letters: N tokens of a grid (Gy, Gx), D embed_dim, r rank, k head_dim, G heads that share one key.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float64
from torch import Tensor

from structured_init.attention.impulse.basis import Basis, Factors, factor
from structured_init.attention.impulse.offsets import Border, axis_shift

CUTOFF = 1e-3  # of the pseudo-inverse, relative to the largest singular value


def centred_shift(size: int, offset: int, *, border: Border) -> Float64[Tensor, "size size"]:
    """The shift along one axis without the means of its rows and columns.

    A row's mean does not change its softmax, and positions without a constant could not express a column's.
    """
    shift = axis_shift(size, offset, border=border)
    shift = shift - shift.mean(dim=1, keepdim=True)
    return shift - shift.mean(dim=0, keepdim=True)


def apply_shifts(
    tokens: Float64[Tensor, "tokens channels"], offset: tuple[int, int], grid: tuple[int, int], *, border: Border
) -> Float64[Tensor, "tokens channels"]:
    """Return T X for T = S_y ⊗ 11ᵀ + 11ᵀ ⊗ S_x of centred shifts, without forming the N × N matrix."""
    rows, columns = (centred_shift(size, shift, border=border) for size, shift in zip(grid, offset, strict=True))
    image = tokens.unflatten(0, grid)
    down = torch.einsum("yz,zc->yc", rows, image.sum(dim=1))[:, None]
    right = torch.einsum("xz,zc->xc", columns, image.sum(dim=0))[None]
    return (down + right).flatten(0, 1)


def separable(
    basis: Basis, offsets: Sequence[tuple[int, int]], grid: tuple[int, int], head_dim: int, *, border: Border
) -> Factors:
    """Return each head's W_q and one W_k whose logits on P are T_h, 1 for each axis on which a key lies at the offset.

    M_h = P⁺ T_h P⁺ᵀ are factored by singular values (:func:`factor`). Together they need at most Gy + Gx − 2 directions
    of the key; with a smaller k the best ones are taken.

    Args:
        basis: of P, cut to what the pseudo-inverse inverts.
        offsets: (rows, columns) from query to target, of the heads that share a key.
        grid: (Gy, Gx).
        head_dim: k.
        border: of the one-dimensional shifts.
    """
    cores = [basis.left.mT @ apply_shifts(basis.left, offset, grid, border=border) for offset in offsets]
    return factor(basis, torch.stack(cores), head_dim)


def expressed(basis: Basis, grid: tuple[int, int]) -> float:
    """Return which share of all functions of the row, plus all of the column, the positions can express.

    1 for row and column codes. Sines and cosines that cannot tell neighbours apart express only the smooth ones.
    """
    image, captured = basis.left.unflatten(0, grid), 0.0
    for axis in (0, 1):
        profile = image.mean(dim=1 - axis)
        # ‖Uᵀ(e ⊗ 1)‖² / ‖e ⊗ 1‖², summed over an orthonormal basis e of this axis' functions without a constant.
        captured += grid[1 - axis] * float((profile - profile.mean(dim=0)).square().sum())
    return captured / max(grid[0] + grid[1] - 2, 1)

"""The separable solver, ours: a shift of an image is a row shift times a column shift, whose logits have a small rank.

Softmax turns a sum of logits into a product, so c·(S_y ⊗ 11ᵀ + 11ᵀ ⊗ S_x) gives the product of two one-dimensional
shifts. These logits have rank at most Gy + Gx − 1, which a head of 64 dimensions holds exactly on a 16×16 grid; the
shift itself has rank Gy·Gx. Whatever the offset, a key enters through functions of its row plus functions of its column
alone, so heads can share one: the queries then say where each of them looks.

Letters: N tokens of a grid (Gy, Gx), D embed_dim, r rank, k head_dim, G heads that share one key.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from structured_init.attention.positions import Positions
from structured_init.impulse.solver import Basis, Border, Factors, ImpulseSolver, Task, axis_shift, factor
from structured_init.util.arguments import check_not_negative, check_positive
from structured_init.util.linalg import random_orthogonal

CUTOFF = 1e-3  # of the pseudo-inverse, relative to the largest singular value
EXPRESSED = 0.9  # below this share, positions are reported as too smooth for a shift


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
    of the key; with a smaller k the best ones are taken. ``basis`` is that of P, cut to what the pseudo-inverse
    inverts; ``offsets`` (rows, columns) those of the heads that share a key.
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


@dataclass(eq=False)
class SeparableSolver(ImpulseSolver):
    """Row shift times column shift, in closed form and exactly of small rank (ours). See :func:`separable`.

    Args:
        strength: c, the logit that a key gains on each axis on which it lies at the offset.
        kappa: how smooth its own positions are, see :func:`row_and_column_codes`; ``None``: not at all.
        gain: their root mean square.
    """

    border = "clamp"

    strength: float = 8.0
    kappa: float | None = 2.0
    gain: float = 0.7

    def __post_init__(self) -> None:
        check_not_negative("SeparableSolver", strength=self.strength)
        check_positive("SeparableSolver", gain=self.gain)
        check_positive("SeparableSolver", null=True, kappa=self.kappa)

    def own_positions(self) -> Positions:
        return Positions("codes", kappa=self.kappa, gain=self.gain)

    def solve(self, task: Task) -> tuple[Tensor, Tensor]:
        site, positions = task.site, task.known_positions()
        basis = positions.basis.cut(cutoff=CUTOFF)
        heads, offsets = [], [tuple(offset) for offset in task.offsets.tolist()]
        for offset in offsets:
            key = (*offset, site.head_dim, task.border)
            if key not in positions.shifts:
                positions.shifts[key] = separable(basis, [offset], task.grid, site.head_dim, border=task.border)
            heads.append(positions.shifts[key])
        worst = min(heads, key=lambda head: head.kept)
        if worst.rank > site.head_dim:
            site.note(
                f"head_dim {site.head_dim} holds {site.head_dim} of the {worst.rank} directions of a shift:"
                f" {1 - worst.kept:.1%} of the product's squared norm is lost"
            )
        if task.group > 1:
            heads = [
                separable(basis, offsets[start : start + task.group], task.grid, site.head_dim, border=task.border)
                for start in range(0, site.num_heads, task.group)
            ]
        if (share := expressed(basis, task.grid)) < EXPRESSED:
            site.note(f"the positions express {share:.0%} of the functions of rows and columns that a shift needs")
        generator = task.draw("rotation")
        turns = torch.stack([random_orthogonal(site.head_dim, site.head_dim, generator=generator) for _ in heads])
        turns *= math.sqrt(self.strength / site.scale)
        query, key = torch.cat([each.query for each in heads]), torch.stack([each.key for each in heads])
        return basis.right @ (query @ turns.repeat_interleave(task.group, dim=0)), basis.right @ (key @ turns)

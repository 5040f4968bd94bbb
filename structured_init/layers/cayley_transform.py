"""The Cayley transform of a batch of matrices, applied to vectors without forming it.

Row vectors: y = x Q. For K (n, n + m) with U its square part and V the rest, and A = U − Uᴴ + V Vᴴ,

    Q = [(I − A) (I + A)⁻¹, −2 (I + A)⁻¹ V],    Q Qᴴ = I, so that |x Q| = |x|.

With Z = X (I + A)⁻¹, X Q = [2 Z − X, −2 Z V]: one inverse, no other product of n³ steps. The gradient needs only
S = G (I + A)⁻ᴴ for the gradient G of Z: that of X is S and that of A is −Zᴴ S, of the rank of the batch. So the
backward pass multiplies by the inverse once more, where differentiating through a formed Q multiplies n×n matrices
twice. A tall K is the transpose of a wide one, and QᴴQ = I.

The reference writes column vectors, for which all of this is transposed.

Source: Trockman & Kolter, 2104.07167; locuslab/orthogonal-convolutions, ``layers.py``, ``cayley``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Inexact
from torch import Tensor
from torch.autograd import Function

SMALLEST_BLOCK = 8  # below it a block is inverted by LAPACK; 4 and 16 take about as long
FEW = 8  # so few matrices are inverted by LAPACK whole
TOLERATED = 64  # error of an inverse, in ε: 2 to 4 at the start of a layer, and 64 leaves ‖QᴴQ − I‖ below 5e-6


def cayley_apply(
    vectors: Inexact[Tensor, "frequencies batch rows"], matrix: Inexact[Tensor, "frequencies rows columns"]
) -> Inexact[Tensor, "frequencies batch columns"]:
    """Return X Q for Q = cayley(K): every norm kept where columns ≥ rows (Q Qᴴ = I), else QᴴQ = I.

    Args:
        vectors: X, the rows.
        matrix: K.
    """
    rows, columns = matrix.shape[-2:]
    if rows <= columns:
        square, rest = matrix[..., :rows], matrix[..., rows:]
        system = _plus_identity(square - square.mH)
        if rows == columns:
            return _Solve.apply(vectors, system).mul(2).sub_(vectors)
        solved = _Solve.apply(vectors, system + rest @ rest.mH)
        return torch.cat([2 * solved - vectors, -2 * (solved @ rest)], dim=-1)
    square, rest = matrix[:, :columns], matrix[:, columns:]
    first, second = vectors[..., :columns], vectors[..., columns:]
    system = _plus_identity(square - square.mH) + rest.mH @ rest
    return 2 * _Solve.apply(first - second @ rest, system) - first


def cayley(matrix: Inexact[Tensor, "frequencies rows columns"]) -> Inexact[Tensor, "frequencies rows columns"]:
    """Return Q itself, for evaluation: training is cheaper with :func:`cayley_apply`."""
    identity = torch.eye(matrix.shape[-2], dtype=matrix.dtype, device=matrix.device)
    return cayley_apply(identity.expand(len(matrix), -1, -1), matrix)


def inverse(matrices: Inexact[Tensor, "frequencies size size"]) -> Inexact[Tensor, "frequencies size size"]:
    """Invert matrices M whose Hermitian part is at least I: by halves, or by LAPACK where that is not exact enough.

    Without pivots the error is that of ε‖M‖², with them of ε‖M‖. So the result is tried on one vector, and matrices
    that a large α has made far from I are left to LAPACK.
    """
    size = matrices.shape[-1]
    if size <= SMALLEST_BLOCK or len(matrices) <= FEW:
        return torch.linalg.inv(matrices)
    result = _by_halves(matrices)
    vector = _chirp(size).to(matrices)
    error = (result @ (matrices @ vector) - vector).norm(dim=-2).amax() / math.sqrt(size)
    return result if error <= TOLERATED * torch.finfo(matrices.dtype).eps else torch.linalg.inv(matrices)


def _by_halves(matrices: Tensor) -> Tensor:
    """Invert [P Q; R T] by P⁻¹ and the inverse of the Schur complement T − R P⁻¹ Q, in products of half the size.

    The Hermitian parts of P and of the Schur complement are at least I as well. Nearly all the work is batched matrix
    products, which take half the time of LAPACK's inverse, called matrix by matrix.
    """
    size = matrices.shape[-1]
    if size <= SMALLEST_BLOCK:
        return torch.linalg.inv(matrices)
    half = size // 2
    top, left = matrices[..., :half, half:], matrices[..., half:, :half]
    first = _by_halves(matrices[..., :half, :half])
    first_top = first @ top
    second = _by_halves(matrices[..., half:, half:] - left @ first_top)
    result = torch.empty_like(matrices)
    result[..., half:, half:] = second
    result[..., half:, :half] = lower = (second @ (left @ first)).neg_()
    result[..., :half, half:] = (first_top @ second).neg_()
    result[..., :half, :half] = first - first_top @ lower
    return result


def _chirp(size: int) -> Tensor:
    """Return exp(iπ k²/size), (size, 1): a vector that has every frequency and no generator."""
    turns = torch.arange(size, dtype=torch.float64)[:, None].square() / size
    return torch.polar(torch.ones_like(turns), math.pi * turns)


class _Solve(Function):
    """Z = X M⁻¹, with a backward pass that reuses the inverse."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, matrices: Tensor) -> Tensor:
        inverted = inverse(matrices)
        solved = vectors @ inverted
        ctx.save_for_backward(matrices, inverted, solved)
        return solved

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        matrices, inverted, solved = ctx.saved_tensors
        # Where a second derivative is wanted, the inverse must know what it depends on.
        again = torch.is_grad_enabled()
        adjoint = _Solve.apply(gradient, matrices.mH) if again else gradient @ inverted.mH
        return adjoint, (-solved.mH @ adjoint) if ctx.needs_input_grad[1] else None


def _plus_identity(matrices: Tensor) -> Tensor:
    matrices.diagonal(dim1=-2, dim2=-1).add_(1)
    return matrices

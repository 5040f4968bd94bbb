"""Parameters that are no draw of independent numbers: matrices, filters and tables with a structure.

Letters: R rows, C columns.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from structured_init.analysis.audit.distribution import Distribution

TOLERANCE = 1e-4  # of squared norms and inner products of rows, by the mean squared norm
ROWS = 256  # compared with each other, at even distances


def structured(value: Tensor) -> Distribution | None:
    """Recognize a structure in a tensor of two or more axes; ``None`` where there is none.

    - ``"identity"``: a constant times the identity, rectangular ones included.
    - ``"Dirac"``: a convolution that hands its input on (``nn.init.dirac_``), in every group.
    - ``"impulse"``: filters with one number that is not zero.
    - ``"orthogonal"``: rows or columns orthogonal and of one length, to ``TOLERANCE`` or the rounding of the dtype.
    - ``"delta orthogonal"``: such a matrix at the centre of a kernel of zeros.
    - ``"log(1 … N)"`` along the last axis, and ``"sinusoidal"`` rows of sines and cosines.
    """
    if value.ndim < 2 or min(value.shape[:2]) < 1 or value.numel() < 4:
        return None
    tolerance = max(TOLERANCE, torch.finfo(value.dtype).eps)
    value = value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
    if value.ndim > 2 and math.prod(value.shape[2:]) > 1 and (found := _filters(value, tolerance)):
        return found
    matrix = value.flatten(1) if value.shape[0] > 1 else value.flatten(0, -2)
    if min(matrix.shape) < 2:
        return None
    return _identity(matrix) or _logarithms(matrix) or _sinusoidal(matrix) or _orthogonal(matrix, tolerance)


def _filters(value: Tensor, tolerance: float) -> Distribution | None:
    """Look at convolutions (R, C, *taps)."""
    taps = value.flatten(2)
    used = taps != 0
    heights = taps[used]
    if len(heights) and bool((used.flatten(1).sum(1) <= 1).all()) and bool((heights == heights[0]).all()):
        centre = used[..., math.prod(value.shape[2:]) // 2]
        rows = torch.arange(value.shape[0])
        centred = value.shape[1] > 1 and int(centre[rows, rows % value.shape[1]].sum()) == len(heights)
        if centred or len(heights) == value.shape[0]:
            return Distribution("Dirac" if centred else "impulse", heights[0].item())
        return None
    middle = tuple(size // 2 for size in value.shape[2:])
    matrix = value[(slice(None), slice(None), *middle)]
    if value.shape[1] > 1 and int(used.sum()) == int((matrix != 0).sum()) and min(matrix.shape) > 1:
        found = _orthogonal(matrix, tolerance)
        return None if found is None else Distribution("delta orthogonal", found.scale)
    return None


def _identity(matrix: Tensor) -> Distribution | None:
    diagonal = matrix.diagonal()
    exact = bool((diagonal == diagonal[0]).all()) and diagonal[0] != 0
    if exact and int((matrix != 0).sum()) == len(diagonal):
        return Distribution("identity", diagonal[0].item())
    return None


def _logarithms(matrix: Tensor) -> Distribution | None:
    expected = torch.arange(1, matrix.shape[1] + 1, dtype=matrix.dtype, device=matrix.device).log()
    if not torch.allclose(matrix[0], expected, atol=1e-2):  # one row decides nearly always
        return None
    return Distribution("log(1 … N)") if torch.allclose(matrix, expected.expand_as(matrix), atol=1e-2) else None


def _sinusoidal(matrix: Tensor) -> Distribution | None:
    """Recognize rows that are sines and cosines of the same angles: each has the squared norm C/2."""
    if matrix.shape[1] < 4 or matrix.shape[1] % 2:
        return None
    squares = matrix.square().sum(1)
    squares = squares[squares > 0]  # a class token's is zero
    half = torch.full_like(squares, matrix.shape[1] / 2)
    sines = len(squares) > 1 and torch.allclose(squares, half, rtol=1e-3) and matrix.abs().max() <= 1 + 1e-3
    return Distribution("sinusoidal") if sines else None


def _orthogonal(matrix: Tensor, tolerance: float) -> Distribution | None:
    """Recognize orthogonal rows, or columns where there are fewer of them, of one length."""
    short = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT
    squares = short.square().sum(1)
    mean = squares.mean()
    if mean == 0 or (squares - mean).abs().max() > tolerance * mean:
        return None
    some = short[:: -(-len(short) // ROWS)]
    gram = (some @ some.mT) / mean
    gram.fill_diagonal_(0)
    return Distribution("orthogonal", mean.sqrt().item()) if gram.abs().max() <= tolerance else None

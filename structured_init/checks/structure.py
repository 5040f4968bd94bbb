"""A structure of a tensor that no independent draws have: orthogonal, an identity, a table that was computed."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from structured_init.checks.distribution import Distribution

TOLERANCE = 1e-4  # of squared norms and inner products of rows, by the mean squared norm
ROWS = 256  # compared with each other, at even distances
CORNER = 64  # numbers of each axis that are looked at for turning points


def structured(value: Tensor, groups: int = 1) -> Distribution | None:
    """Recognize a structure; ``None`` where there is none.

    ``groups`` are a convolution's, or of a matrix parts of as many rows each, such as heads.

    - ``"identity"``: a constant times the identity, rectangular ones included.
    - ``"impulse"``: filters with at most one number that is not zero, all of one height.
    - ``"orthogonal"``: several rows or columns orthogonal and of one length, to ``TOLERANCE`` or the dtype's rounding.
    - ``"delta orthogonal"``: such a matrix, of each group one, at the centre of a kernel of zeros.
    - ``"log(1 … N)"`` along the last axis, and ``"sinusoidal"`` rows of sines and cosines.
    - ``"computed"``: any other table without the turning points of draws, such as a ``linspace``, repeated or not.
    """
    if value.ndim < 2 or value.numel() < 4:
        return _computed(value)
    tolerance = max(TOLERANCE, torch.finfo(value.dtype).eps)
    value = value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
    groups = groups if len(value) % groups == 0 else 1
    if value.ndim > 2 and math.prod(value.shape[2:]) > 1 and (found := _filters(value, tolerance, groups)):
        return found
    matrix = value.flatten(1) if value.shape[0] > 1 else value.flatten(0, -2)
    one_tap = groups > 1 and math.prod(value.shape[2:]) == 1  # equal norms of larger filters prove nothing
    found = _orthogonal(matrix, tolerance, groups) if one_tap else None
    if found or min(matrix.shape) < 2:
        return found or _computed(value)
    known = _identity(matrix) or logarithms(matrix) or _sinusoidal(matrix)
    return known or _computed(value) or _orthogonal(matrix, tolerance)


def _computed(value: Tensor) -> Distribution | None:
    """Recognize numbers that rise or fall steadily along every axis; two of three draws are turning points (Bienaymé).

    A quarter or fewer on an axis of 16 draws has a probability of 5e-5, and of 24 of 5e-7.
    """
    corner, seen = value[(slice(CORNER),) * value.ndim].double(), 0
    for axis in range(value.ndim):
        signs = corner.diff(dim=axis).sign().movedim(axis, 0)
        pairs = signs[1:] * signs[:-1]
        told = int(pairs.count_nonzero())
        if 4 * int((pairs < 0).sum()) > told:
            return None
        seen += told
    return Distribution("computed") if seen >= 14 else None


def _filters(value: Tensor, tolerance: float, groups: int) -> Distribution | None:
    """Look at convolutions (R, C, *taps)."""
    used = value != 0
    heights = value[used]
    one_each = len(heights) > 0 and bool((used.flatten(1).sum(1) <= 1).all())
    if one_each and bool((heights == heights[0]).all()):
        return Distribution("impulse", heights[0].item())
    for before in (1, 0):  # an even kernel has two centres: that of DeltaOrthogonal, and that of nn.init.dirac_
        matrix = value[(..., *((size - before) // 2 for size in value.shape[2:]))]
        if len(heights) == int((matrix != 0).sum()) and (found := _orthogonal(matrix, tolerance, groups)):
            return replace(found, kind="delta orthogonal")
    return None


def _identity(matrix: Tensor) -> Distribution | None:
    diagonal = matrix.diagonal()
    exact = bool((diagonal == diagonal[0]).all()) and diagonal[0] != 0
    if exact and int((matrix != 0).sum()) == len(diagonal):
        return Distribution("identity", diagonal[0].item())
    return None


def logarithms(matrix: Tensor) -> Distribution | None:
    """Recognize rows of log(1 … N)."""
    expected = torch.arange(1, matrix.shape[1] + 1, dtype=matrix.dtype, device=matrix.device).log()
    near = matrix.shape[1] > 1 and torch.allclose(matrix[0], expected, atol=1e-2)  # one row decides nearly always
    alike = near and torch.allclose(matrix, expected.expand_as(matrix), atol=1e-2)
    return Distribution("log(1 … N)") if alike else None


def _sinusoidal(matrix: Tensor) -> Distribution | None:
    """Recognize rows of sines and cosines, each of the squared norm C/2: all but zeros and up to two prefix tokens."""
    if matrix.shape[1] < 4 or matrix.shape[1] % 2:
        return None
    matrix = matrix[matrix.any(dim=1)]
    half = torch.tensor(matrix.shape[1] / 2, dtype=matrix.dtype)
    for prefix in range(min(3, len(matrix) - 1)):
        rows = matrix[prefix:]
        if torch.allclose(rows.square().sum(1), half, rtol=1e-3) and rows.abs().max() <= 1 + 1e-3:
            return Distribution("sinusoidal")
    return None


def _orthogonal(matrix: Tensor, tolerance: float, groups: int = 1) -> Distribution | None:
    """Recognize orthogonal rows, or columns where there are fewer of them, of one length; in each group of rows."""
    parts = matrix.unflatten(0, (groups, -1))
    short = parts if parts.shape[1] <= parts.shape[2] else parts.mT
    squares = short.square().sum(-1)
    mean = squares.mean()
    if mean == 0 or (squares - mean).abs().max() > tolerance * mean:
        return None
    some = short[:, :: -(-short.shape[1] // ROWS)]
    gram = (some @ some.mT) / mean
    gram.diagonal(dim1=-2, dim2=-1).zero_()
    return Distribution("orthogonal", mean.sqrt().item()) if gram.abs().max() <= tolerance else None

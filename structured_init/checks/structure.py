"""A structure of a tensor that no independent draws have: orthogonal, an identity, a table that was computed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from structured_init.checks.distribution import Distribution

STRUCTURES = ("impulse", "delta orthogonal", "log(1 … N)", "sinusoidal", "computed", "orthogonal")
TOLERANCE = 1e-4  # of squared norms and inner products of rows, by the mean squared norm
ROWS = 256  # compared with each other, at even distances
CORNER = 64  # numbers of each axis that are looked at for turning points
SEEN = 14  # places that are asked whether they are turning points, or more


def structured(value: Tensor, groups: int = 1) -> Distribution | None:
    """Recognize a structure; ``None`` where there is none.

    ``groups`` are a convolution's, or of a matrix parts of as many rows each, such as heads.

    - ``"impulse"``: filters with at most one number that is not zero, all of one height.
    - ``"delta orthogonal"``: an orthogonal matrix, of each group one, at one place of a kernel of zeros.
    - ``"log(1 … N)"`` along the last axis, and ``"sinusoidal"`` rows of sines and cosines.
    - ``"computed"``: any other table without the turning points of draws, such as a ``linspace``, repeated or not.
    - ``"orthogonal"``: several rows or columns orthogonal and of one length, as of an identity, to ``TOLERANCE`` or the
      dtype's rounding.
    """
    if value.ndim < 2:
        return _logarithms(value.reshape(1, -1)) or _computed(value)
    tolerance = max(TOLERANCE, torch.finfo(value.dtype).eps)
    value = value.float()
    if value.ndim > 2 and value[0, 0].numel() > 1:
        found = _filters(value.flatten(2), tolerance, groups)
        if found:
            return found
        groups = 1  # equal norms of larger filters prove nothing
    matrix = value.flatten(1) if len(value) > 1 else value.flatten(0, -2)
    rows = (_logarithms(matrix) or _sinusoidal(matrix)) if min(matrix.shape) > 1 else None
    return rows or _computed(value) or _orthogonal(matrix, tolerance, groups)


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
    return Distribution("computed") if seen >= SEEN else None


def _filters(filters: Tensor, tolerance: float, groups: int) -> Distribution | None:
    """Look at convolutions (R, C, taps)."""
    used = filters != 0
    heights = filters[used]
    if not len(heights):
        return None
    if used.flatten(1).sum(1).max() == 1 and bool((heights == heights[0]).all()):
        return Distribution("impulse", heights[0].item())
    (places,) = used.any(dim=0).any(dim=0).nonzero(as_tuple=True)
    found = _orthogonal(filters[..., places[0]], tolerance, groups) if len(places) == 1 else None
    return Distribution("delta orthogonal", found.scale) if found else None


def _logarithms(matrix: Tensor) -> Distribution | None:
    """Recognize rows of log(1 … N)."""
    expected = torch.arange(1, matrix.shape[1] + 1, dtype=matrix.dtype, device=matrix.device).log()
    return Distribution("log(1 … N)") if torch.allclose(matrix, expected.expand_as(matrix), atol=1e-2) else None


def _sinusoidal(matrix: Tensor) -> Distribution | None:
    """Recognize rows of sines and cosines, most of the squared norm C/2: all but zeros and a few prefix tokens."""
    rows = matrix[matrix.any(dim=1)]
    whole = (rows.square().mean(1) - 0.5).abs() < 1e-3
    found = matrix.shape[1] > 3 and 2 * whole.sum() > len(rows) and rows.abs().max() <= 1 + 1e-3
    return Distribution("sinusoidal") if found else None


def _orthogonal(matrix: Tensor, tolerance: float, groups: int) -> Distribution | None:
    """Recognize orthogonal rows, or columns where there are fewer of them, of one length; in each group of rows."""
    if len(matrix) % groups or (groups == 1 and min(matrix.shape) < 2):
        return None
    parts = matrix.unflatten(0, (groups, -1))
    short = parts if parts.shape[1] <= parts.shape[2] else parts.mT
    squares = short.square().sum(-1)
    mean = squares.mean()
    if mean == 0 or (squares - mean).abs().max() > tolerance * mean:
        return None
    some = short[:, :: math.ceil(short.shape[1] / ROWS)]
    gram = (some @ some.mT) / mean
    gram.diagonal(dim1=-2, dim2=-1).zero_()
    return Distribution("orthogonal", mean.sqrt().item()) if gram.abs().max() <= tolerance else None

"""Decompositions of matrices that may hold numbers that are not finite, as after a training that diverged."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor


def singular_values(matrices: Float[Tensor, "*batch rows columns"]) -> Float[Tensor, "*batch values"]:
    """Return the singular values, the largest first; nan for a matrix that is not finite, where LAPACK would raise."""
    finite = matrices.isfinite().all(-1).all(-1)
    values = torch.linalg.svdvals(matrices.masked_fill(~finite[..., None, None], 0))
    return values.masked_fill(~finite[..., None], math.nan)

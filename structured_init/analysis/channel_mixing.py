"""Whether channel mixing alone reaches a spatial filter: Proposition 1 of arXiv 2404.01139 (section 3) as a check.

A layer convolves channel d with its own filter h_d and then mixes the channels by a matrix. Where the inputs have rank
k, x_d = Σ_r a_dr z_r, channel d carries the vector h_d ⊗ a_d, of length k·f². Any filter on any input channel is a
combination of the channels once D of these vectors span their space, for which D ≥ k·f² is needed; filters in general
position, such as random ones, then suffice without being trained.

Letters: B batch, D channels, H × W pixels, N = B·H·W, f size of a filter, k rank of the inputs, T targets.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int
from torch import Tensor

from structured_init.analysis.statistics import singular_values
from structured_init.arguments import check_whole
from structured_init.errors import StructuredInitError

Images = Float[Tensor, "batch channels height width"]
Kernels = Float[Tensor, "filters _ _"]


def numerical_rank(matrix: Float[Tensor, "rows columns"], tolerance: float = 1e-6) -> int | float:
    """Return how many singular values are larger than ``tolerance`` times the largest; nan where one is not finite.

    Args:
        matrix: any; computed in float64.
        tolerance: above the rounding of what made the matrix: 1e-6 for float32.
    """
    if matrix.ndim != 2:
        raise StructuredInitError(f"a matrix is (rows, columns), got shape {tuple(matrix.shape)}")
    matrix = matrix.double()
    if matrix.shape[0] > matrix.shape[1]:  # the triangle of its QR decomposition has the same singular values
        matrix = torch.linalg.qr(matrix, mode="r").R
    values = singular_values(matrix)
    if values.isnan().any():
        return math.nan
    return int((values > tolerance * values[0]).sum()) if len(values) and values[0] > 0 else 0


def channel_matrix(inputs: Images) -> Float[Tensor, "pixels channels"]:
    """Return inputs as a matrix (N, D), whose rank is the proposition's k."""
    return inputs.movedim(1, -1).flatten(0, -2)


def filter_basis(filters: Kernels, tolerance: float = 1e-6) -> Float64[Tensor, "rank rows columns"]:
    """Return an orthonormal basis of the filters' span, the strongest directions first; nan where one is not finite.

    Args:
        filters: of one layer.
        tolerance: of :func:`numerical_rank`.
    """
    if not filters.isfinite().all():
        return filters.new_full((min(len(filters), filters[0].numel()), *filters.shape[1:]), math.nan).double()
    _, _, directions = torch.linalg.svd(filters.double().flatten(1), full_matrices=False)
    return directions[: numerical_rank(filters.flatten(1), tolerance)].unflatten(1, filters.shape[1:])


def channels_needed(rank: int, filter_size: int) -> int:
    """Return k·f², the number of channels that the proposition asks for."""
    check_whole("channels_needed", 0, rank=rank, filter_size=filter_size)
    return rank * filter_size**2


def mixing_residual(
    inputs: Images, filters: Kernels, targets: Float[Tensor, "targets _ _"], channels: Int[Tensor, " chosen"]
) -> Float64[Tensor, " targets"]:
    """Return how far the best channel mixing stays from each target, ‖Y w − t‖/‖t‖ with w by least squares.

    Y (N, D) are the channels after their own filters, t (N,) is one input channel after a target filter. Zero is
    reached, one is out of reach. The convolutions pad with zeros and keep the size.

    Args:
        inputs: the layer's inputs; N should be well above D.
        filters: one per channel, of odd size.
        targets: filters to be reached, of the same size.
        channels: the input channel that each target is applied to.

    Raises:
        StructuredInitError: not one filter per channel, targets of another size, an even size, or fewer pixels than
            channels.
    """
    batch, width, rows, columns = inputs.shape
    if len(filters) != width:
        raise StructuredInitError(f"there are {len(filters)} filters for {width} channels: give one per channel")
    if filters.shape[1:] != targets.shape[1:] or len(targets) != len(channels):
        raise StructuredInitError(
            f"targets must have the filters' size {tuple(filters.shape[1:])} and one per channel index, got "
            f"{tuple(targets.shape)} for {len(channels)} indices"
        )
    if filters.shape[1] % 2 == 0 or filters.shape[2] % 2 == 0:
        raise StructuredInitError(f"filters must have an odd size, got {tuple(filters.shape[1:])}")
    if (pixels := batch * rows * columns) <= width:
        raise StructuredInitError(f"{pixels} pixels do not determine a mixing of {width} channels: give more images")
    images = inputs.double()
    mixed = channel_matrix(_depthwise(images, filters))
    wanted = channel_matrix(_depthwise(images[:, channels], targets))
    if not mixed.isfinite().all():
        return wanted.new_full((wanted.shape[1],), math.nan)
    # Orthogonal columns of the same span: the normal equations would square the condition number.
    left, values, _ = torch.linalg.svd(mixed, full_matrices=False)
    span = left[:, values > 1e-10 * values[0]]
    missed = wanted - span @ (span.mT @ wanted)
    return missed.norm(dim=0) / wanted.norm(dim=0)


def _depthwise(images: Float64[Tensor, "batch channels height width"], filters: Kernels) -> Tensor:
    padding = (filters.shape[1] // 2, filters.shape[2] // 2)
    return F.conv2d(images, filters.double()[:, None], padding=padding, groups=len(filters))

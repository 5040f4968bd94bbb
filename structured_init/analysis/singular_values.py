"""Singular values of convolutions and linear layers, as operators on inputs of a given size, in float64.

Letters: n the size of one axis of the input, k of the kernel, s stride, d dilation, p padding.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Complex
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn

from structured_init.layers import CayleyConv2d, CayleyLinear

CAYLEY = (CayleyConv2d, CayleyLinear)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
DENSE = 1024  # operators with at most so many rows or columns are written out and decomposed
TOLERANCE = 1e-8  # of the largest eigenvalue of AᵀA, relative to it, where it is iterated
SMALL_TOLERANCE = 1e-6  # of the smallest one, relative to the largest


class Extremes(NamedTuple):
    """Largest and smallest of the min(rows, columns) singular values, and whether they are exact.

    Estimates err to one side: the largest is one from below, the smallest one from above.
    """

    largest: float
    smallest: float
    exact: bool


def layer_extremes(module: nn.Module, shape: tuple[int, ...]) -> Extremes | None:
    """Return the extreme singular values of a layer for inputs of ``shape`` (with batch), or ``None`` if not linear.

    Exact for linear and Cayley layers, for convolutions that are circular or cut the input into patches, and for small
    ones (``DENSE``); else by Lanczos iteration, the smallest from above: below √``SMALL_TOLERANCE`` of the largest it
    cannot be told from zero. Both are nan where a weight is not finite.
    """
    is_linear = type(module).forward is nn.Linear.forward or isinstance(module, (*CAYLEY, *CONVOLUTIONS, *TRANSPOSED))
    if is_linear and not all(tensor.isfinite().all() for tensor in module.parameters()):
        return Extremes(math.nan, math.nan, True)
    if isinstance(module, CayleyConv2d):
        return _exact(cayley_matrices(module, shape))
    if isinstance(module, CayleyLinear):
        return _exact(module.matrices(module.precision(module.weight)).detach().double())
    if type(module).forward is nn.Linear.forward:
        return _exact(module.weight.detach().double())
    if not isinstance(module, (*CONVOLUTIONS, *TRANSPOSED)):
        return None
    if any(type(module).forward is cls.forward for cls in CONVOLUTIONS) and is_circulant(module, shape):
        return _exact(circular_matrices(module, shape[2:]))
    return _iterated(module, shape)


def cayley_matrices(module: CayleyConv2d, shape: tuple[int, ...]) -> Tensor:
    """Return the matrices that the layer multiplies by, rounded as it rounds them, in double precision."""
    size = module.output_size(*shape[1:])
    with torch.no_grad():
        return module.matrices(*size, module.precision(module.weight)).to(torch.complex128)


def paddings(module: nn.Module) -> list[tuple[int, int]]:
    """Return the padding before and after each axis."""
    flat = module._reversed_padding_repeated_twice
    return [(flat[2 * i], flat[2 * i + 1]) for i in reversed(range(len(module.kernel_size)))]


def is_circulant(module: nn.Module, shape: tuple[int, ...]) -> bool:
    """Say whether a convolution is circular on the whole input: stride·output = input, read modulo the size."""
    axes = zip(shape[2:], paddings(module), module.kernel_size, module.stride, module.dilation, strict=True)
    out = [(n + before + after - d * (k - 1) - 1) // s + 1 for n, (before, after), k, s, d in axes]
    fits = all(o * s == n for o, s, n in zip(out, module.stride, shape[2:], strict=True))
    return fits and (module.padding_mode == "circular" or not any(sum(pad) for pad in paddings(module)))


def circular_matrices(module: nn.Module, size: tuple[int, ...]) -> Complex[Tensor, "frequencies out in_aliases"]:
    """Return the matrix of each output frequency of a convolution that reads ``size`` circularly.

    ``size`` is a multiple of the stride. An output frequency f collects the input frequencies f + j n/s,
    j = 0 … s − 1, that the stride folds onto it, each with weight 1/√s: so the matrices side by side have the
    singular values of the whole operator. The padding only turns phases. Groups are stacked along the first axis.
    """
    kernel = module.weight.detach().double().cpu()
    groups, axes = module.groups, len(size)
    spread = kernel.new_zeros(*kernel.shape[:2], *size)
    for tap in np.ndindex(*kernel.shape[2:]):  # taps that fall on one pixel add up
        place = tuple(t * d % n for t, d, n in zip(tap, module.dilation, size, strict=True))
        spread[(..., *place)] += kernel[(..., *tap)]
    response = torch.fft.fftn(spread, dim=tuple(range(2, 2 + axes)))
    for axis, (n, s) in enumerate(zip(size, module.stride, strict=True)):
        response = response.unflatten(2 + 2 * axis, (s, n // s)) / math.sqrt(s)
    aliases, frequencies = [2 + 2 * axis for axis in range(axes)], [3 + 2 * axis for axis in range(axes)]
    response = response.permute(*frequencies, 0, 1, *aliases).flatten(0, axes - 1).flatten(2)
    return response.unflatten(1, (groups, -1)).flatten(0, 1)


def _exact(matrices: Tensor) -> Extremes:
    values = torch.linalg.svdvals(matrices.cpu())
    return Extremes(values.max().item(), values.min().item(), True)


def _iterated(module: nn.Module, shape: tuple[int, ...]) -> Extremes:
    """Write the operator out where it is small, else iterate on the smaller of AᵀA and AAᵀ."""
    forward, adjoint, columns, rows = _operator(module, shape)
    first, second, size = (forward, adjoint, columns) if columns <= rows else (adjoint, forward, rows)
    if size <= DENSE:
        return _exact(torch.cat([first(part) for part in torch.eye(size, dtype=torch.float64).split(64)]))

    def gram(vector: np.ndarray) -> np.ndarray:
        return second(first(torch.from_numpy(np.ascontiguousarray(vector)).view(1, -1))).flatten().numpy()

    start = np.random.default_rng(0).standard_normal(size)

    def top(apply: Callable[[np.ndarray], np.ndarray], tolerance: float) -> float:
        if not apply(start).any():  # the operator is zero, which ARPACK refuses
            return 0.0
        operator = LinearOperator((size, size), matvec=apply, dtype=np.float64)
        return float(eigsh(operator, k=1, v0=start, which="LA", return_eigenvectors=False, tol=tolerance)[0])

    largest = top(gram, TOLERANCE)
    # Small eigenvalues lie close together: the distance of the smallest from the largest is what converges.
    smallest = largest - top(lambda v: largest * v.ravel() - gram(v), SMALL_TOLERANCE)
    return Extremes(math.sqrt(largest), math.sqrt(max(smallest, 0.0)), False)


Apply = Callable[[Tensor], Tensor]


def _operator(module: nn.Module, shape: tuple[int, ...]) -> tuple[Apply, Apply, int, int]:
    """Return x → A x and y → Aᵀ y on batches of flat vectors, and the numbers of columns and rows of A."""
    twin = copy.deepcopy(module).double().cpu().eval().requires_grad_(False)
    shape = tuple(shape[1:])
    constant = twin(torch.zeros(1, *shape, dtype=torch.float64))

    def forward(vectors: Tensor) -> Tensor:
        return (twin(vectors.view(-1, *shape)) - constant).flatten(1)

    def adjoint(vectors: Tensor) -> Tensor:
        with torch.enable_grad():
            inputs = torch.zeros(len(vectors), *shape, dtype=torch.float64, requires_grad=True)
            return torch.autograd.grad(twin(inputs).flatten(1), inputs, vectors)[0].flatten(1)

    return forward, adjoint, math.prod(shape), constant.numel()

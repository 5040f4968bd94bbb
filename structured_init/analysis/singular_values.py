"""The matrices of Cayley and circular convolutions as operators on inputs of a given size, in double precision.

Letters: n the size of one axis of the input, k of the kernel, s stride, d dilation, p padding.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Complex
from torch import Tensor, nn

from structured_init.layers import CayleyConv2d

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


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

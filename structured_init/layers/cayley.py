"""Layers that are orthogonal at every step, by the Cayley transform of their matrices: a linear one, a convolution.

Row vectors: y = x Q. For K (n, n + m) with U its square part and V the rest, and A = U − Uᴴ + V Vᴴ,

    Q = [(I − A) (I + A)⁻¹, −2 (I + A)⁻¹ V],    Q Qᴴ = I, so that |x Q| = |x|.

With Z = X (I + A)⁻¹, X Q = [2 Z − X, −2 Z V]. A tall K is the transpose of a wide one, and QᴴQ = I. The reference
writes column vectors, for which all of this is transposed.

Letters: B batch, h height, w width, F = h (⌊w/2⌋ + 1) frequencies, k side of a kernel, s stride.

Source: Trockman & Kolter, 2104.07167; locuslab/orthogonal-convolutions, ``layers.py``, ``cayley``.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Complex, Float, Inexact, Shaped
from torch import Tensor, nn

from structured_init.util.arguments import check_whole
from structured_init.util.errors import StructuredInitError


def cayley_apply(
    vectors: Inexact[Tensor, "frequencies batch rows"], matrix: Inexact[Tensor, "frequencies rows columns"]
) -> Inexact[Tensor, "frequencies batch columns"]:
    """Return X Q for Q = cayley(K): every norm kept where columns ≥ rows (Q Qᴴ = I), else QᴴQ = I."""
    rows, columns = matrix.shape[-2:]
    identity = torch.eye(min(rows, columns), dtype=matrix.dtype, device=matrix.device)
    if rows <= columns:
        square, rest = matrix[..., :rows], matrix[..., rows:]
        solved = torch.linalg.solve(identity + square - square.mH + rest @ rest.mH, vectors, left=False)
        return torch.cat([2 * solved - vectors, -2 * (solved @ rest)], dim=-1)
    square, rest = matrix[..., :columns, :], matrix[..., columns:, :]
    first, second = vectors[..., :columns], vectors[..., columns:]
    system = identity + square - square.mH + rest.mH @ rest
    return 2 * torch.linalg.solve(system, first - second @ rest, left=False) - first


def cayley(matrix: Inexact[Tensor, "frequencies rows columns"]) -> Inexact[Tensor, "frequencies rows columns"]:
    """Return Q itself, for evaluation: training is cheaper with :func:`cayley_apply`."""
    identity = torch.eye(matrix.shape[-2], dtype=matrix.dtype, device=matrix.device)
    return cayley_apply(identity.expand(len(matrix), -1, -1), matrix)


def to_spectrum(images: Float[Tensor, "batch channels height width"]) -> Complex[Tensor, "frequencies batch channels"]:
    """Return images as half spectra, orthonormally: a real image's columns 0 … ⌊w/2⌋ of frequencies hold all of it."""
    return torch.fft.rfft2(images, norm="ortho").permute(2, 3, 0, 1).flatten(0, 1)


def from_spectrum(
    spectrum: Complex[Tensor, "frequencies batch channels"], height: int, width: int
) -> Float[Tensor, "batch channels {height} {width}"]:
    """Return the images whose half spectra these are."""
    columns = spectrum.unflatten(0, (height, width // 2 + 1)).permute(2, 3, 0, 1)
    return torch.fft.irfft2(columns, s=(height, width), norm="ortho")


def frequency_response(
    kernel: Float[Tensor, "out in k k"], height: int, width: int, stride: int
) -> Complex[Tensor, "frequencies in_blocks out"]:
    """Return the matrix K (F, in·s², out) by which a circular convolution multiplies each frequency, ŷ = x̂ K.

    It is cross-correlation as in ``nn.Conv2d``, with its centre at ⌊(k − 1)/2⌋. A strided convolution is one of stride
    1 on the image whose s×s blocks became channels, in the order of ``F.pixel_unshuffle``. Height and width are the
    input's.
    """
    side = kernel.shape[-1]
    if side > min(height, width):
        raise StructuredInitError(f"the input {height}×{width} is smaller than the kernel {side}×{side}")
    centre = (side - 1) // 2
    placed = F.pad(kernel, (0, width - side, 0, height - side)).roll((-centre, -centre), dims=(2, 3))
    # The transform convolves: its conjugate correlates.
    return torch.fft.rfft2(F.pixel_unshuffle(placed, stride)).conj().permute(2, 3, 1, 0).flatten(0, 1)


class CayleyLayer(nn.Module):
    """A layer of matrices cayley(α W/‖W‖): the Cayley transform depends on scale, so scale has a weight of its own."""

    def __init__(self, *shape: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))
        self.alpha = nn.Parameter(torch.empty(()))
        self.bias = nn.Parameter(torch.empty(shape[0])) if bias else None
        # What `matrices` computed last in evaluation mode: the size, α W/‖W‖, and the matrices of both.
        self._kept: tuple[tuple[int, ...], Tensor, Tensor] | None = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights and bias from U(±1/√fan_in), as torch does, and set α = ‖W‖: the first step sees W itself."""
        bound = 1 / math.sqrt(math.prod(self.weight.shape[1:]))
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)
        with torch.no_grad():
            self.alpha.copy_(self.weight.norm())

    def precision(self, inputs: Tensor) -> torch.dtype:
        """Return the dtype to compute in: float32 or better."""
        return torch.promote_types(torch.promote_types(self.weight.dtype, torch.float32), inputs.dtype)

    def direction(self, dtype: torch.dtype) -> Tensor:
        """Return α W/‖W‖ in the given precision."""
        weight = self.weight.to(dtype)
        return weight * (self.alpha.to(dtype) / weight.norm())

    def response(self, direction: Tensor, size: tuple[int, ...]) -> Inexact[Tensor, "frequencies rows columns"]:
        """Return the matrices K of α W/‖W‖, for images of a size, or vectors, which have none."""
        raise NotImplementedError

    def matrices(self, dtype: torch.dtype, size: tuple[int, ...] = ()) -> Inexact[Tensor, "frequencies rows columns"]:
        """Return Q, which acts on row vectors; no gradient flows through it."""
        # Outside of inference mode, so that a later forward with gradients of its input can use the matrices.
        with torch.inference_mode(False), torch.no_grad():
            direction = self.direction(dtype)
            if self._kept is not None:
                last_size, last, matrices = self._kept
                alike = (last_size, last.dtype, last.device) == (size, dtype, direction.device)
                if alike and torch.equal(last, direction):
                    return matrices
            matrices = cayley(self.response(direction, size))
            self._kept = None if self.training else (size, direction, matrices)
            return matrices

    def orthogonal(
        self, vectors: Inexact[Tensor, "frequencies batch rows"], size: tuple[int, ...] = ()
    ) -> Inexact[Tensor, "frequencies batch columns"]:
        """Return X Q: from matrices that evaluation keeps, unless a gradient of the weights may be wanted."""
        dtype = vectors.real.dtype
        wants_gradient = torch.is_grad_enabled() and (self.weight.requires_grad or self.alpha.requires_grad)
        if self.training or wants_gradient:
            return cayley_apply(vectors, self.response(self.direction(dtype), size))
        return vectors @ self.matrices(dtype, size)


class CayleyLinear(CayleyLayer):
    """y = Q x + b with Q = cayley(α W/‖W‖): QᵀQ = I where out ≥ in, Q Qᵀ = I where out ≤ in.

    Computed in float32 or better, whatever the precision outside; the output has the input's dtype.

    Source: 2104.07167; locuslab/orthogonal-convolutions, ``layers.py``, ``CayleyLinear``.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        check_whole("CayleyLinear", in_features=in_features, out_features=out_features)
        super().__init__(out_features, in_features, bias=bias)
        self.in_features, self.out_features = in_features, out_features

    def forward(self, inputs: Shaped[Tensor, "*batch in"]) -> Shaped[Tensor, "*batch out"]:
        dtype = self.precision(inputs)
        with torch.autocast(inputs.device.type, enabled=False):
            rows = inputs.to(dtype).reshape(1, -1, self.in_features)
            outputs = self.orthogonal(rows).reshape(*inputs.shape[:-1], -1)
            if self.bias is not None:
                outputs = outputs + self.bias.to(dtype)
        return outputs.to(inputs.dtype)

    def response(self, direction: Tensor, size: tuple[int, ...]) -> Float[Tensor, "frequencies in_features out"]:
        return direction.mT[None]

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class CayleyConv2d(CayleyLayer):
    """A circular convolution Q with orthonormal columns or rows, at any height and width.

    With in' = in_channels·stride² the channels after a space-to-depth of factor ``stride``: where out_channels ≥ in',
    QᴴQ = I, and the layer keeps the norm of every input (an expansion); where out_channels ≤ in', Q Qᴴ = I, and it
    keeps the norm of every gradient that comes back (a contraction). The largest singular value is 1 either way.

    Q = cayley(α Ŵ/‖W‖) at each frequency of half the spectrum, with Ŵ that of an ordinary convolution of weight W
    (out, in, k, k), centred at ⌊(k − 1)/2⌋, with circular padding and the stride. The kernel of Q is as large as the
    image. All is computed in float32 or better, whatever the precision outside; the output has the input's dtype.

    ``kernel_size`` is k; height and width of the input are multiples of ``stride``.

    Source: 2104.07167; locuslab/orthogonal-convolutions, ``layers.py``, ``CayleyConv``.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, bias: bool = True
    ) -> None:
        sizes = {"in_channels": in_channels, "out_channels": out_channels, "kernel_size": kernel_size, "stride": stride}
        check_whole("CayleyConv2d", **sizes)
        super().__init__(out_channels, in_channels, kernel_size, kernel_size, bias=bias)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride = kernel_size, stride

    def forward(
        self, inputs: Shaped[Tensor, "batch in_channels height width"]
    ) -> Shaped[Tensor, "batch out_channels out_height out_width"]:
        """Convolve: (B, in, h, w) → (B, out, h/stride, w/stride).

        Raises:
            StructuredInitError: the input is smaller than the kernel.
        """
        _, _, height, width = inputs.shape
        dtype = self.precision(inputs)
        with torch.autocast(inputs.device.type, enabled=False):
            spectrum = to_spectrum(F.pixel_unshuffle(inputs.to(dtype), self.stride))
            filtered = self.orthogonal(spectrum, (height, width))
            outputs = from_spectrum(filtered, height // self.stride, width // self.stride)
            if self.bias is not None:
                outputs = outputs + self.bias.to(dtype)[:, None, None]
        return outputs.to(inputs.dtype)

    def response(self, direction: Tensor, size: tuple[int, ...]) -> Complex[Tensor, "frequencies in_blocks out"]:
        height, width = size
        return frequency_response(direction, height, width, self.stride)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"

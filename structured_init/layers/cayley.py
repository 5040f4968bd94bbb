"""Layers that are orthogonal at every step, by the Cayley transform of their matrices: a linear one, a convolution.

Row vectors: y = x Q. For K (n, n + m) with U its square part and V the rest, and A = U − Uᴴ + V Vᴴ,

    Q = [(I − A) (I + A)⁻¹, −2 (I + A)⁻¹ V],    Q Qᴴ = I, so that |x Q| = |x|.

With Z = X (I + A)⁻¹, X Q = [2 Z − X, −2 Z V]: one inverse, no other product of n³ steps. The gradient needs only
S = G (I + A)⁻ᴴ for the gradient G of Z: that of X is S and that of A is −Zᴴ S, of the rank of the batch. So the
backward pass multiplies by the inverse once more, where differentiating through a formed Q multiplies n×n matrices
twice. A tall K is the transpose of a wide one, and QᴴQ = I. The reference writes column vectors, for which all of this
is transposed.

Source: Trockman & Kolter, 2104.07167; locuslab/orthogonal-convolutions, ``layers.py``, ``cayley``.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import torch
from jaxtyping import Complex, Float, Inexact, Shaped
from torch import Tensor, nn
from torch.autograd import Function

from structured_init.arguments import check_whole
from structured_init.errors import StructuredInitError
from structured_init.layers.half_spectrum import (
    filter_images,
    frequency_response,
    from_spectrum,
    half_spectrum_norm,
    to_spectrum,
)

SMALLEST_BLOCK = 8  # below it a block is inverted by LAPACK; 4 and 16 take about as long
FEW = 8  # so few matrices are inverted by LAPACK whole
TOLERATED = 64  # error of an inverse, in ε: 2 to 4 at the start of a layer, and 64 leaves ‖QᴴQ − I‖ below 5e-6
SPATIAL, HALF_SPECTRUM = 0, 1  # in which norm of W the scale α is measured


class CayleyLayer(nn.Module):
    """A layer whose matrices are cayley(α W/‖W‖): the Cayley transform depends on scale, so scale has its own weight.

    In evaluation mode the matrices are made once and kept. They are made anew when a weight, the input's size, the
    precision or the device changes: on the CPU the weights are compared by value, on an accelerator, which would have
    to be waited for, by version and address (a write through ``.data`` is then seen at the next ``train()`` or
    ``eval()``). Where a gradient of the weights may be wanted they are never taken from what is kept: an attack in
    evaluation mode is faster with ``requires_grad_(False)``.

    Subclasses set ``weight``, ``alpha`` and ``bias``.
    """

    weight: nn.Parameter
    alpha: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self) -> None:
        super().__init__()
        self._kept: tuple[Hashable, tuple[Tensor, ...], Tensor] | None = None

    def precision(self, inputs: Tensor) -> torch.dtype:
        """Return the dtype to compute in: float32 or better. In float16 parameters nothing holds: an error."""
        if torch.float16 in (self.weight.dtype, self.alpha.dtype):
            name = type(self).__name__
            raise StructuredInitError(f"{name}: parameters are float16; keep them in float32, autocast may stay on")
        dtype = torch.promote_types(self.weight.dtype, torch.float32)
        return torch.promote_types(dtype, inputs.dtype) if inputs.is_floating_point() else dtype

    def direction(self, dtype: torch.dtype) -> Tensor:
        """Return α W/‖W‖ in the given precision."""
        weight = self.weight.to(dtype)
        return weight * (self.alpha.to(dtype) / self.norm(weight))

    def norm(self, weight: Tensor) -> Tensor:
        """Return ‖W‖, and the smallest number where all weights are zero."""
        return weight.norm().clamp_min(torch.finfo(weight.dtype).tiny)

    def reset_parameters(self) -> None:
        """Draw weights and bias from U(±1/√fan_in), as torch does, and set α = ‖W‖: the first step sees W itself."""
        bound = 1 / math.sqrt(math.prod(self.weight.shape[1:]))
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)
        with torch.no_grad():
            self.alpha.copy_(self.weight.norm())

    @property
    def may_keep(self) -> bool:
        """Whether this forward may use matrices made before."""
        wants_gradient = torch.is_grad_enabled() and (self.weight.requires_grad or self.alpha.requires_grad)
        return not self.training and not wants_gradient

    def kept(self, *wanted: Any) -> Tensor:
        """Return ``self.matrices(*wanted)``, made now or before."""
        weights = (self.weight, self.alpha)
        versions = (0 if weight.is_inference() else weight._version for weight in weights)
        key = (*wanted, *versions, *((weight.device, weight.dtype, weight.data_ptr()) for weight in weights))
        if self._kept is None or self._kept[0] != key or not all(map(torch.equal, self._kept[1], weights)):
            # Outside of inference mode, so that a later forward with gradients of its input can use the matrices.
            with torch.inference_mode(False), torch.no_grad():
                on_cpu = all(weight.device.type == "cpu" for weight in weights)
                copies = tuple(weight.detach().clone() for weight in weights) if on_cpu else ()
                self._kept = (key, copies, self.matrices(*wanted))
        return self._kept[2]

    def matrices(self, *wanted: Any) -> Tensor:
        """Return the orthogonal matrices of the present weights."""
        raise NotImplementedError

    def train(self, mode: bool = True) -> CayleyLayer:
        """Change the mode and let go of what was kept."""
        self._kept = None
        return super().train(mode)

    def _apply(self, *args: Any, **kwargs: Any) -> CayleyLayer:
        self._kept = None
        return super()._apply(*args, **kwargs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        self._kept = None
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}  # copies and files hold weights only


def cayley_apply(
    vectors: Inexact[Tensor, "frequencies batch rows"], matrix: Inexact[Tensor, "frequencies rows columns"]
) -> Inexact[Tensor, "frequencies batch columns"]:
    """Return X Q for Q = cayley(K): every norm kept where columns ≥ rows (Q Qᴴ = I), else QᴴQ = I."""
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
    # exp(iπ k²/size), a vector that has every frequency and needs no generator.
    turns = torch.arange(size, dtype=torch.float64)[:, None].square() / size
    vector = torch.polar(torch.ones_like(turns), math.pi * turns).to(matrices)
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


def _from_blocks(weight: Tensor, shape: tuple[int, ...], stride: int, prefix: str) -> Tensor:
    """Return the kernel over pixels (out, in, k, k) of one over blocks (out, in·s², ⌊k/s⌋, ⌊k/s⌋)."""
    pixels = nn.functional.pixel_shuffle(weight, stride)
    # Offsets from the pixel that is read at the centre: where the block kernel begins, and where ours does.
    sizes = zip(shape[2:], weight.shape[2:], strict=True)
    begin = [(size - 1) // 2 - stride * ((blocks - 1) // 2) for size, blocks in sizes]
    end = [start + size for start, size in zip(begin, pixels.shape[2:], strict=True)]
    if min(begin) < 0 or any(last > size for last, size in zip(end, shape[2:], strict=True)):
        name, size = prefix.rstrip(".") or "CayleyConv2d", "×".join(map(str, shape[2:]))
        raise StructuredInitError(
            f"{name}: the reference's kernel of {'×'.join(map(str, pixels.shape[2:]))} pixels reaches beyond {size}; "
            f"build the layer with kernel_size {2 * stride * (max(weight.shape[2:]) // 2 + 1) - 2}"
        )
    kernel = weight.new_zeros(shape)
    kernel[:, :, begin[0] : end[0], begin[1] : end[1]] = pixels
    return kernel


class CayleyLinear(CayleyLayer):
    """y = Q x + b with Q = cayley(α W/‖W‖): QᵀQ = I where out ≥ in, Q Qᵀ = I where out ≤ in.

    Computed in float32 or better, whatever the precision outside; the output has the input's dtype. Parameters in
    float16 are refused. State dicts are those of the reference.

    Source: 2104.07167; locuslab/orthogonal-convolutions, ``layers.py``, ``CayleyLinear``.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        check_whole("CayleyLinear", in_features=in_features, out_features=out_features)
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.alpha = nn.Parameter(torch.empty(()))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.reset_parameters()

    def forward(self, inputs: Shaped[Tensor, "*batch in"]) -> Shaped[Tensor, "*batch out"]:
        dtype = self.precision(inputs)
        with torch.autocast(inputs.device.type, enabled=False):
            vectors = inputs.to(dtype)
            bias = None if self.bias is None else self.bias.to(dtype)
            if self.may_keep:
                outputs = nn.functional.linear(vectors, self.kept(dtype), bias)
            else:
                rows = vectors.reshape(-1, self.in_features)
                outputs = cayley_apply(rows[None], self.direction(dtype).mT[None])[0]
                outputs = (outputs if bias is None else outputs + bias).reshape(*inputs.shape[:-1], -1)
        return outputs.to(inputs.dtype)

    def matrices(self, dtype: torch.dtype) -> Float[Tensor, "out in"]:
        """Return Q in the given precision."""
        return cayley(self.direction(dtype).mT[None])[0].mT.contiguous()

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

    State dicts of the reference load and give its function, α then staying measured in the reference's norm, which
    is that of Ŵ over the half spectrum and differs between sizes.

    ``kernel_size`` is k, or rows and columns; height and width of the input are multiples of ``stride``.

    Source: 2104.07167; locuslab/orthogonal-convolutions, ``layers.py``, ``CayleyConv``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.stride = in_channels, out_channels, stride
        self.kernel_size = (kernel_size, kernel_size) if isinstance(kernel_size, int) else tuple(kernel_size)
        for size in self.kernel_size:
            check_whole(
                "CayleyConv2d", in_channels=in_channels, out_channels=out_channels, kernel_size=size, stride=stride
            )
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, *self.kernel_size))
        self.alpha = nn.Parameter(torch.empty(()))
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.alpha_norm = SPATIAL

    def forward(
        self, inputs: Shaped[Tensor, "batch in_channels height width"]
    ) -> Shaped[Tensor, "batch out_channels out_height out_width"]:
        """Convolve: (B, in, h, w) → (B, out, h/stride, w/stride).

        Raises:
            StructuredInitError: the input is no batch of images, smaller than the kernel or no multiple of the stride,
                its channels are not ``in_channels``, or the parameters are float16.
        """
        if inputs.ndim != 4:
            shape = tuple(inputs.shape)
            raise StructuredInitError(f"CayleyConv2d takes a batch of images (batch, channels, h, w), got {shape}")
        dtype = self.precision(inputs)
        height, width = self.output_size(*inputs.shape[1:])
        with torch.autocast(inputs.device.type, enabled=False):
            images = inputs.to(dtype)
            if self.stride > 1:  # a factor of 1 would copy
                images = nn.functional.pixel_unshuffle(images, self.stride)
            if self.may_keep:
                outputs = filter_images(images, self.kept(height, width, dtype))
            else:
                spectrum = cayley_apply(to_spectrum(images), self.response(height, width, dtype))
                outputs = from_spectrum(spectrum, height, width)
            if self.bias is not None:
                outputs = outputs.add_(self.bias.to(dtype)[:, None, None])
        return outputs.to(inputs.dtype)

    def output_size(self, channels: int, height: int, width: int) -> tuple[int, int]:
        """Return height and width of the output for an input (channels, height, width), or say why there is none."""
        rows, columns = self.kernel_size
        if channels != self.in_channels:
            raise StructuredInitError(f"CayleyConv2d: the input has {channels} channels, not {self.in_channels}")
        if height < rows or width < columns:
            raise StructuredInitError(
                f"CayleyConv2d: the input {height}×{width} is smaller than the kernel {rows}×{columns}"
            )
        if height % self.stride or width % self.stride:
            raise StructuredInitError(
                f"CayleyConv2d: the input {height}×{width} is not a multiple of the stride {self.stride}"
            )
        return height // self.stride, width // self.stride

    def response(self, height: int, width: int, dtype: torch.dtype) -> Complex[Tensor, "frequencies in_blocks out"]:
        """Return (α Ŵ/‖W‖)ᵀ at each frequency of an output of height × width."""
        direction = self.direction(dtype)
        if self.alpha_norm == HALF_SPECTRUM:
            weight = self.weight.to(dtype)
            direction = direction * (self.norm(weight) / half_spectrum_norm(weight, height, width, self.stride))
        return frequency_response(direction, height, width, self.stride)

    def matrices(self, height: int, width: int, dtype: torch.dtype) -> Complex[Tensor, "frequencies in_blocks out"]:
        """Return Qᵀ, which acts on row vectors, at each of the h (⌊w/2⌋ + 1) frequencies of the output."""
        return cayley(self.response(height, width, dtype))

    def to_conv2d(self, height: int, width: int) -> nn.Conv2d:
        """Return an ordinary circular convolution that does the same to inputs of height × width.

        For checking, and for tools that know only those. It is not cheap: its kernel is as large as the image, so it
        takes height·width products for every 1 of a 1×1 convolution. Sizes are refused as by :meth:`forward`.
        """
        rows, columns = self.output_size(self.in_channels, height, width)
        with torch.no_grad():
            matrices = self.matrices(rows, columns, torch.float64)
            half = matrices.conj().permute(2, 1, 0).unflatten(2, (rows, columns // 2 + 1))
            offsets = nn.functional.pixel_shuffle(torch.fft.irfft2(half, s=(rows, columns)), self.stride)
            # At offset 0 of the kernel stands the tap that reads the pixel itself; the padding moves it inwards.
            same = self.stride == 1
            before = [(size - 1) // 2 if same else -((self.stride - size) // 2) for size in (height, width)]
            sizes = (self.in_channels, self.out_channels, (height, width), self.stride)
            border = {"padding": "same" if same else tuple(before), "padding_mode": "circular"}
            convolution = nn.Conv2d(*sizes, **border, bias=self.bias is not None).to(self.weight)
            convolution.weight.copy_(offsets.roll(before, dims=(2, 3)))
            if self.bias is not None:
                convolution.bias.copy_(self.bias)
        return convolution

    def get_extra_state(self) -> Tensor:
        """Return in which norm α is measured: a state dict without it is the reference's."""
        return torch.tensor(self.alpha_norm)

    def set_extra_state(self, state: Any) -> None:
        """Set in which norm α is measured."""
        self.alpha_norm = int(state)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if f"{prefix}weight" in state_dict and f"{prefix}_extra_state" not in state_dict:  # it notes no norm for α
            # Change the entries in place: the shape of the weight, a missing α, and the norm of α.
            shape = tuple(self.weight.shape)
            weight = state_dict[f"{prefix}weight"]
            if self.stride > 1 and tuple(weight.shape[:2]) == (shape[0], shape[1] * self.stride**2):
                weight = state_dict[f"{prefix}weight"] = _from_blocks(weight, shape, self.stride, prefix)
            alpha = state_dict.get(f"{prefix}alpha")
            # Without α the layer never ran; its first forward would have taken Ŵ as it is.
            state_dict[f"{prefix}alpha"] = weight.norm() if alpha is None else alpha.reshape(())
            state_dict[f"{prefix}_extra_state"] = torch.tensor(int(alpha is not None))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        kernel = "{}, {}, kernel_size={}, stride={}"
        return kernel.format(self.in_channels, self.out_channels, self.kernel_size, self.stride)

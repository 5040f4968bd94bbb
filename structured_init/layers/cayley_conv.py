"""A convolution that is orthogonal at every step: the Cayley transform of its matrix at each frequency."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Complex, Shaped
from torch import Tensor, nn

from structured_init.errors import StructuredInitError
from structured_init.layers.cayley_transform import cayley, cayley_apply
from structured_init.layers.half_spectrum import (
    filter_images,
    frequency_response,
    from_spectrum,
    half_spectrum_norm,
    to_spectrum,
)
from structured_init.layers.orthogonal import CayleyLayer
from structured_init.layers.reference_state import is_of_reference, translate

SPATIAL, HALF_SPECTRUM = 0, 1  # in which norm of W the scale α is measured


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

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: k, or rows and columns.
        stride: height and width of the input are multiples of it.
        bias: add a bias.

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
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = (kernel_size, kernel_size) if isinstance(kernel_size, int) else tuple(kernel_size)
        self.stride = stride
        if min(in_channels, out_channels, *self.kernel_size, stride) < 1:
            raise StructuredInitError(f"CayleyConv2d: channels, kernel_size and stride must be positive, got {self}")
        self.alpha_norm = SPATIAL
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, *self.kernel_size))
        self.alpha = nn.Parameter(torch.empty(()))
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights and bias as ``nn.Conv2d`` does and set α = ‖W‖, so that the first step sees W itself."""
        bound = 1 / math.sqrt(self.in_channels * math.prod(self.kernel_size))
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)
        self.alpha_norm = SPATIAL
        with torch.no_grad():
            self.alpha.copy_(self.weight.norm())

    def forward(
        self, inputs: Shaped[Tensor, "batch in_channels height width"]
    ) -> Shaped[Tensor, "batch out_channels out_height out_width"]:
        """Convolve: (B, in, h, w) → (B, out, h/stride, w/stride).

        Raises:
            StructuredInitError: the input is smaller than the kernel or no multiple of the stride, its channels are
                not ``in_channels``, or the parameters are float16.
        """
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
        takes height·width products for every 1 of a 1×1 convolution.

        Raises:
            StructuredInitError: as :meth:`forward`.
        """
        rows, columns = self.output_size(self.in_channels, height, width)
        with torch.no_grad():
            matrices = self.matrices(rows, columns, torch.float64)
            half = matrices.conj().permute(2, 1, 0).unflatten(2, (rows, columns // 2 + 1))
            offsets = nn.functional.pixel_shuffle(torch.fft.irfft2(half, s=(rows, columns)), self.stride)
            # At offset 0 of the kernel stands the tap that reads the pixel itself; the padding moves it inwards.
            same = self.stride == 1
            before = [(size - 1) // 2 if same else -((self.stride - size) // 2) for size in (height, width)]
            convolution = nn.Conv2d(
                self.in_channels,
                self.out_channels,
                (height, width),
                self.stride,
                padding="same" if same else tuple(before),
                bias=self.bias is not None,
                padding_mode="circular",
            ).to(self.weight)
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
        if is_of_reference(state_dict, prefix):
            translate(state_dict, prefix, tuple(self.weight.shape), self.stride)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        kernel = "{}, {}, kernel_size={}, stride={}"
        return kernel.format(self.in_channels, self.out_channels, self.kernel_size, self.stride)

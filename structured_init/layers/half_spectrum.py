"""Real images as half of their spectrum, and the small kernels that act on them there.

The spectrum of a real image is conjugate-symmetric, so the columns 0 … w/2 hold all of it. Gradients of a half
spectrum are taken in the inner product of the whole one, ⟨X, Y⟩ = Σ_f c_f Re(X̄_f Y_f) with c_f = 2 for every
frequency that stands for its mirror image too. Then the orthonormal transform is an isometry, its gradient is its
inverse, and no weighting passes over the images. Whatever acts on each frequency alone need not know of it.

Letters: B batch, C channels, h height, w width, F = h (⌊w/2⌋ + 1) frequencies, T taps of a kernel, s stride.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Complex, Float
from torch import Tensor
from torch.autograd import Function

LARGE, CHUNK = 1024, 16  # pixels from which on so few images are filtered at a time


class _ToSpectrum(Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor) -> Tensor:
        ctx.size = images.shape[-2:]
        columns = torch.fft.rfft2(images, norm="ortho")
        # As one flat transposition: a permutation of four axes takes up to three times as long.
        return columns.reshape(-1, columns[0, 0].numel()).T.contiguous().unflatten(1, images.shape[:2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _FromSpectrum.apply(gradient, *ctx.size)


class _FromSpectrum(Function):
    @staticmethod
    def forward(ctx: Any, spectrum: Tensor, height: int, width: int) -> Tensor:
        columns = spectrum.flatten(1).T.contiguous().view(*spectrum.shape[1:], height, width // 2 + 1)
        # In two steps: irfft2 takes twice as long on the CPU.
        return torch.fft.irfft(torch.fft.ifft(columns, dim=2, norm="ortho"), n=width, norm="ortho")

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _ToSpectrum.apply(gradient), None, None


class _Response(Function):
    @staticmethod
    def forward(ctx: Any, taps: Tensor, waves: Tensor, copies: Tensor) -> Tensor:
        ctx.save_for_backward(waves, copies)
        return waves @ taps.to(waves.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _ResponseAdjoint.apply(gradient, *ctx.saved_tensors), None, None


class _ResponseAdjoint(Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, waves: Tensor, copies: Tensor) -> Tensor:
        ctx.save_for_backward(waves, copies)
        return ((waves * copies[:, None]).mH @ gradient).real

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _Response.apply(gradient, *ctx.saved_tensors), None, None


def to_spectrum(images: Float[Tensor, "batch channels height width"]) -> Complex[Tensor, "frequencies batch channels"]:
    """Transform images to half spectra (F, B, C), orthonormally."""
    return _ToSpectrum.apply(images)


def from_spectrum(
    spectrum: Complex[Tensor, "frequencies batch channels"], height: int, width: int
) -> Float[Tensor, "batch channels {height} {width}"]:
    """Return the images (B, C, h, w) whose half spectra these are: the inverse of :func:`to_spectrum`."""
    return _FromSpectrum.apply(spectrum, height, width)


def filter_images(
    images: Float[Tensor, "batch channels height width"], matrices: Complex[Tensor, "frequencies channels out"]
) -> Float[Tensor, "batch out height width"]:
    """Multiply each frequency of images by a matrix, some images at a time where no gradient flows."""
    height, width = images.shape[-2:]
    differentiated = torch.is_grad_enabled() and images.requires_grad
    # On the CPU a large batch would be written to fresh memory four times over, which costs as much as the work itself.
    few = height * width >= LARGE and images.device.type == "cpu" and not differentiated
    parts = images.split(CHUNK) if few else (images,)
    if len(parts) == 1:
        return from_spectrum(to_spectrum(images) @ matrices, height, width)
    outputs = images.new_empty(len(images), matrices.shape[-1], height, width)
    for part, output in zip(parts, outputs.split(CHUNK), strict=True):
        output.copy_(from_spectrum(to_spectrum(part) @ matrices, height, width))
    return outputs


def frequency_response(
    kernel: Float[Tensor, "out in rows columns"], height: int, width: int, stride: int = 1
) -> Complex[Tensor, "frequencies in_blocks out"]:
    """Return the matrix K (F, in·s², out) by which a circular convolution multiplies each frequency, ŷ = x̂ K.

    K(u, v) = Σ_t W[t]ᵀ exp(2πi (u (t₁ − c₁)/h + v (t₂ − c₂)/w)): cross-correlation as in ``nn.Conv2d``, with the
    centre c = ⌊(k − 1)/2⌋. A strided convolution is one of stride 1 on the image whose s×s blocks became channels, in
    the order of ``F.pixel_unshuffle``. Height and width are the output's, the input's being s times that.
    """
    out_channels, in_channels = kernel.shape[:2]
    waves, copies = _waves(kernel, height, width, stride)
    taps = kernel.flatten(2).permute(2, 1, 0).flatten(1)
    response = _Response.apply(taps, waves.flatten(0, 1), copies.repeat_interleave(stride**2))
    response = response.view(-1, stride**2, in_channels, out_channels)
    return response.transpose(1, 2).flatten(1, 2)


def half_spectrum_norm(
    kernel: Float[Tensor, "out in rows columns"], height: int, width: int, stride: int = 1
) -> Float[Tensor, ""]:
    """Return the Frobenius norm of :func:`frequency_response`, frequencies that have a mirror image counted once."""
    waves = _waves(kernel, height, width, stride)[0].flatten(0, 1)
    gram = (waves.mH @ waves).real
    taps = kernel.flatten(2).permute(2, 1, 0).flatten(1)
    return (taps * (gram @ taps)).sum().sqrt()


def _waves(kernel: Tensor, height: int, width: int, stride: int) -> tuple[Tensor, Tensor]:
    """Return exp(2πi …) for every frequency, place in a block and tap (F, s², T), and c (F,)."""
    device = kernel.device
    rows = _line(kernel.shape[2], height, torch.arange(height, device=device), stride)
    columns = _line(kernel.shape[3], width, torch.arange(width // 2 + 1, device=device), stride)
    waves = torch.einsum("upk,vql->uvpqkl", rows, columns).flatten(4).flatten(2, 3).flatten(0, 1)
    copies = torch.full((width // 2 + 1,), 2, device=device)
    copies[0] = 1
    if width % 2 == 0:
        copies[-1] = 1
    real = kernel.dtype
    return waves.to(torch.complex128 if real == torch.float64 else torch.complex64), copies.repeat(height).to(real)


def _line(taps: int, size: int, frequencies: Tensor, stride: int) -> Tensor:
    """Return the waves along one axis (frequency, place in a block, tap): a tap is nonzero at its own place only."""
    offset = torch.arange(taps, device=frequencies.device) - (taps - 1) // 2
    block, place = offset.div(stride, rounding_mode="floor"), offset.remainder(stride)
    turns = (frequencies[:, None] * block).remainder(size).double() / size  # exact before the sine and cosine
    waves = torch.polar(torch.ones_like(turns), 2 * math.pi * turns)
    at_place = place == torch.arange(stride, device=frequencies.device)[:, None]
    return waves[:, None] * at_place

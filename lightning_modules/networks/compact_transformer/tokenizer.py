"""Tokenizers: from an image to a grid of tokens.

Letters: B batch, C channels, H height, W width, N tokens, D embed_dim.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from structured_init.errors import StructuredInitError

POOL, POOL_STRIDE, POOL_PADDING = 3, 2, 1


class ConvTokenizer(nn.Module):
    """CCT's: convolution without bias, ReLU and max pooling (3, stride 2), once per layer.

    Args:
        in_channels: C.
        embed_dim: D, the channels of the last convolution.
        kernel_size: of every convolution.
        conv_layers: how many.
        stride: of every convolution; max(1, k // 2 − 1) when None, as published.
        padding: likewise; max(1, k // 2) when None.
        hidden_channels: of the convolutions before the last.

    Raises:
        StructuredInitError: a number is out of its range.
    """

    def __init__(
        self,
        in_channels: int,
        embed_dim: int,
        kernel_size: int,
        conv_layers: int = 1,
        stride: int | None = None,
        padding: int | None = None,
        hidden_channels: int = 64,
    ) -> None:
        super().__init__()
        stride = max(1, kernel_size // 2 - 1) if stride is None else stride
        padding = max(1, kernel_size // 2) if padding is None else padding
        if min(kernel_size, conv_layers, stride) < 1 or padding < 0:
            raise StructuredInitError(
                f"a tokenizer has kernel_size, conv_layers and stride of at least 1 and padding of at least 0, not "
                f"{kernel_size}, {conv_layers}, {stride} and {padding}"
            )
        channels = [in_channels, *[hidden_channels] * (conv_layers - 1), embed_dim]
        self.conv_layers = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(channels[i], channels[i + 1], kernel_size, stride, padding, bias=False),
                    nn.ReLU(),
                    nn.MaxPool2d(POOL, POOL_STRIDE, POOL_PADDING),
                )
                for i in range(conv_layers)
            )
        )
        initialize_convolutions(self)

    def side(self, image_size: int) -> int:
        """Return the tokens along a side of the image.

        Raises:
            StructuredInitError: none is left.
        """
        side = image_size
        for convolution, *_ in self.conv_layers:
            kernel, stride, padding = (
                sizes[0] for sizes in (convolution.kernel_size, convolution.stride, convolution.padding)
            )
            convolved = side_after(side, kernel, stride, padding)
            if convolved < 1:
                raise StructuredInitError(
                    f"the tokenizer leaves no token of image_size {image_size}: kernel_size {kernel}, stride {stride} "
                    f"and padding {padding} meet {side} pixels; use a larger image or padding"
                )
            side = side_after(convolved, POOL, POOL_STRIDE, POOL_PADDING)
        return side

    def forward(self, images: Tensor) -> Tensor:
        """Return tokens (B, N, D) of images (B, C, H, W), row by row.

        The channels stand last in memory: pooling is faster that way, and the tokens need no copy.
        """
        return self.conv_layers(images.contiguous(memory_format=torch.channels_last)).flatten(2).mT


class PatchTokenizer(nn.Module):
    """ViT-Lite's and CVT's: one convolution of square patches, with bias, and nothing after it.

    Args:
        in_channels: C.
        embed_dim: D.
        patch_size: side of a patch in pixels.

    Raises:
        StructuredInitError: the patch is smaller than one pixel.
    """

    def __init__(self, in_channels: int, embed_dim: int, patch_size: int) -> None:
        super().__init__()
        if patch_size < 1:
            raise StructuredInitError(f"patch_size must be at least 1, not {patch_size}")
        self.patch_size = patch_size
        # Nested and named as in CCT, so that one map of names serves both.
        self.conv_layers = nn.Sequential(nn.Sequential(nn.Conv2d(in_channels, embed_dim, patch_size, patch_size)))
        initialize_convolutions(self)

    def side(self, image_size: int) -> int:
        """Return the tokens along a side of the image.

        Raises:
            StructuredInitError: the patches do not divide it.
        """
        if image_size < 1 or image_size % self.patch_size:
            raise StructuredInitError(f"patch_size {self.patch_size} does not divide image_size {image_size}")
        return image_size // self.patch_size

    def forward(self, images: Tensor) -> Tensor:
        """Return tokens (B, N, D) of images (B, C, H, W), row by row."""
        return self.conv_layers(images).flatten(2).mT


def side_after(size: int, kernel_size: int, stride: int, padding: int) -> int:
    """Return the size that a convolution or pooling leaves of ``size``; zero or less where it does not fit."""
    return (size + 2 * padding - kernel_size) // stride + 1


def initialize_convolutions(module: nn.Module) -> None:
    """Draw the weights of convolutions from N(0, 2 / fan_in), as published; biases keep torch's default."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight)

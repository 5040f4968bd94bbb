"""What is trained on without labels: the next token, hidden tokens, hidden patches.

Letters: B samples, N tokens, V numbers of tokens, P pixels of a patch.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F


def next_token_loss(
    logits: Float[Tensor, "batch tokens numbers"],
    tokens: Int64[Tensor, "batch tokens"],
    counted: Bool[Tensor, "batch tokens"] | None = None,
) -> Float[Tensor, ""]:
    """Return the mean cross-entropy of each token but the first, given those before it.

    Args:
        logits: (B, N, V); those at token n are for token n + 1.
        tokens: (B, N).
        counted: (B, N), which tokens are to be foretold; all where it is None.
    """
    losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")
    return losses.mean() if counted is None else losses[counted[:, 1:]].mean()


def hidden_token_loss(
    logits: Float[Tensor, "batch tokens numbers"],
    tokens: Int64[Tensor, "batch tokens"],
    hidden: Bool[Tensor, "batch tokens"],
) -> Float[Tensor, ""]:
    """Return the mean cross-entropy of the tokens (B, N) that were hidden."""
    return F.cross_entropy(logits[hidden], tokens[hidden])


def hidden_patch_loss(
    pixels: Float[Tensor, "batch tokens pixels"],
    patches: Float[Tensor, "batch tokens pixels"],
    hidden: Bool[Tensor, "batch tokens"],
) -> Float[Tensor, ""]:
    """Return the mean squared error of the pixels (B, N, P) of the patches that were hidden."""
    return F.mse_loss(pixels[hidden], patches[hidden])


def image_patches(
    images: Float[Tensor, "batch channels rows columns"], convolution: nn.Conv2d, *, normalized: bool
) -> Float[Tensor, "batch tokens pixels"]:
    """Return the pixels (B, N, P) that a convolution makes each token of.

    Args:
        images: what the convolution is given.
        convolution: its kernel, stride, padding and dilation say which pixels.
        normalized: bring the pixels of every patch to mean 0 and variance 1.
    """
    sizes = {name: getattr(convolution, name) for name in ("kernel_size", "dilation", "padding", "stride")}
    patches = F.unfold(images, **sizes).mT
    return F.layer_norm(patches, patches.shape[-1:]) if normalized else patches


def draw_hidden(
    batch: int, tokens: int, share: float, *, generator: torch.Generator, counted: Tensor | None = None
) -> Bool[Tensor, "batch tokens"]:
    """Return which tokens (B, N) are hidden: each with probability ``share``, and in every batch at least one.

    Args:
        batch: B.
        tokens: N.
        share: from 0 to 1.
        generator: draws them.
        counted: (B, N), which tokens may be hidden; all where it is None.
    """
    drawn = torch.rand(batch, tokens, generator=generator)
    if counted is not None:
        drawn = drawn.masked_fill(~counted.cpu(), 2.0)
    return drawn < max(share, drawn.min().nextafter(torch.tensor(2.0)).item())

"""Mixup and CutMix as functions of a batch and a generator.

Letters: B batch, C channels, H height, W width.

Sources: mixup, Zhang et al. 2018 (1710.09412); CutMix, Yun et al. 2019 (1905.04899). The libraries' versions draw from
the global random state, which would tie a run's batches to everything drawn before; here the caller's generator does.
"""

from __future__ import annotations

import numpy as np
import torch.nn.functional as F
from torch import Tensor


def mix(images: Tensor, *, mixup: float, cutmix: float, rng: np.random.Generator) -> tuple[Tensor, float]:
    """Mix every image with its predecessor in the batch, the first with the last.

    Args:
        images: (B, C, H, W).
        mixup: parameter of mixup's Beta distribution; 0 leaves mixup out.
        cutmix: parameter of CutMix's Beta distribution; 0 leaves CutMix out. With both, each batch tosses a coin.
        rng: draws the weight and the box, on the CPU, so that no step waits for a device.

    Returns:
        The mixed images, and the weight in [0, 1] of each image's own label; the rest belongs to its predecessor's.
    """
    if not mixup and not cutmix:
        return images, 1.0
    cut = bool(cutmix) and (not mixup or rng.random() < 0.5)
    alpha = cutmix if cut else mixup
    weight = float(rng.beta(alpha, alpha))
    partners = images.roll(1, 0)
    return _paste(images, partners, weight, rng) if cut else (partners.lerp(images, weight), weight)


def _paste(images: Tensor, partners: Tensor, weight: float, rng: np.random.Generator) -> tuple[Tensor, float]:
    """Paste a box of area ``1 - weight`` of the partners; a border may cut it, and the weight follows what is left."""
    height, width = images.shape[-2:]
    half = (1 - weight) ** 0.5 / 2
    row, column = rng.integers(height), rng.integers(width)
    top, bottom = max(round(row - half * height), 0), min(round(row + half * height), height)
    left, right = max(round(column - half * width), 0), min(round(column + half * width), width)
    mixed = images.clone()
    mixed[..., top:bottom, left:right] = partners[..., top:bottom, left:right]
    return mixed, 1 - (bottom - top) * (right - left) / (height * width)


def mixed_cross_entropy(logits: Tensor, labels: Tensor, weight: float, label_smoothing: float = 0.0) -> Tensor:
    """Return the cross-entropy of a batch that :func:`mix` mixed.

    The loss is linear in its target, so two losses on class numbers equal one on the mixed distribution.

    Args:
        logits: (B, classes).
        labels: (B,) class numbers of the unmixed images.
        weight: what :func:`mix` returned.
        label_smoothing: share of the target spread over all classes.
    """
    loss = F.cross_entropy(logits, labels, label_smoothing=label_smoothing)
    if weight == 1.0:
        return loss
    return weight * loss + (1 - weight) * F.cross_entropy(logits, labels.roll(1, 0), label_smoothing=label_smoothing)

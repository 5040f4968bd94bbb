"""Image classification with any network; mixup and CutMix as functions of a batch and a generator.

Letters: B batch, C channels, H height, W width.

Sources: mixup, Zhang et al. 2018 (1710.09412); CutMix, Yun et al. 2019 (1905.04899). The libraries' versions draw from
the global random state, which would tie a run's batches to everything drawn before; here the caller's generator does.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_modules.networks import create_network
from lightning_modules.tasks.task import ClassifierTask
from structured_init.util.arguments import check_not_negative, check_share, check_whole
from structured_init.util.errors import StructuredInitError


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
    """Return the cross-entropy of a batch that :func:`mix` mixed, of logits (B, classes) and the unmixed labels (B,).

    The loss is linear in its target, so two losses on class numbers equal one on the mixed distribution. ``weight`` is
    what :func:`mix` returned, ``label_smoothing`` the share of the target that is spread over all classes.
    """
    loss = F.cross_entropy(logits, labels, label_smoothing=label_smoothing)
    if weight == 1.0:
        return loss
    return weight * loss + (1 - weight) * F.cross_entropy(logits, labels.roll(1, 0), label_smoothing=label_smoothing)


Batch = tuple[Tensor, Tensor]


class ImageClassifier(ClassifierTask):
    """Classifies images. Override :meth:`configure_network` to bring an architecture of your own.

    Logs ``{train,val,test}/accuracy`` and ``{train,val,test}/loss`` once per epoch. The training loss is that of the
    mixed and smoothed targets; the others are plain cross-entropy.

    Args:
        network: a preset of ours, a model of timm, or a ``class_path`` whose ``init_args`` say everything.
        network_args: further arguments of a network given by name.
        num_classes: outputs of the network; taken from the data on the command line.
        image_size: side of the square image in pixels; taken from the data on the command line.
        in_channels: channels of the image; taken from the data on the command line.
        label_smoothing: share of the target spread over all classes, in [0, 1).
        mixup: parameter of mixup's Beta distribution; 0 is off.
        cutmix: parameter of CutMix's Beta distribution; 0 is off. With both, each batch takes one of the two.
        seed: of mixup and CutMix, which are functions of (seed, epoch, batch) and so survive a resumption; ``None``
            takes the seed of ``seed_everything``, or 0.
        task: of :class:`Task`: ``optimizer``, ``warmup_epochs``, ``lr_schedule``, ….

    Raises:
        StructuredInitError: unknown network or argument, sizes that do not divide, shares out of range, a schedule
            that is no curve.
    """

    def __init__(
        self,
        network: str | nn.Module = "vit_tiny_patch2_32",
        network_args: dict[str, Any] | None = None,
        num_classes: int = 10,
        image_size: int = 32,
        in_channels: int = 3,
        label_smoothing: float = 0.0,
        mixup: float = 0.0,
        cutmix: float = 0.0,
        seed: int | None = None,
        **task: Any,
    ) -> None:
        check_share("ImageClassifier", label_smoothing=label_smoothing)
        check_not_negative("ImageClassifier", mixup=mixup, cutmix=cutmix)
        check_whole("ImageClassifier", num_classes=num_classes, image_size=image_size, in_channels=in_channels)
        self.num_classes, self.image_size, self.in_channels = num_classes, image_size, in_channels
        self.label_smoothing, self.mixup, self.cutmix = label_smoothing, mixup, cutmix
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else seed
        super().__init__(network, network_args, **task)
        self.count_classes()

    def named_network(self, name: str) -> nn.Module:
        sizes = {"num_classes": self.num_classes, "image_size": self.image_size, "in_channels": self.in_channels}
        repeated = [given for given in self.network_args if given in (*sizes, "in_chans", "img_size")]
        if repeated:
            raise StructuredInitError(f"network_args: {repeated[0]} comes from the data: leave it out")
        return create_network(name, **sizes, **self.network_args)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, classes) of images (B, C, H, W)."""
        return self.network(images)

    def probe_inputs(self, batch: Batch) -> Tensor:
        return batch[0]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the loss of a batch, mixed if asked for; its accuracy is counted on the heavier of the two labels."""
        images, labels = batch
        rng = np.random.default_rng([self.seed, self.current_epoch, batch_idx, self.global_rank])
        images, weight = mix(images, mixup=self.mixup, cutmix=self.cutmix, rng=rng)
        logits = self(images)
        loss = mixed_cross_entropy(logits, labels, weight, self.label_smoothing)
        self.count(self.train_metrics, logits, labels if weight >= 0.5 else labels.roll(1, 0), loss)
        return loss

    def evaluate(self, split: str, batch: Batch, batch_idx: int) -> None:
        images, labels = batch
        logits = self(images)
        self.count(self.known_metrics(split), logits, labels, F.cross_entropy(logits, labels))

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return class probabilities (B, classes)."""
        return self(self.probe_inputs(batch)).softmax(-1)

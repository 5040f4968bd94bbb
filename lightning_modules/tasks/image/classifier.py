"""Image classification with any network.

Letters: B batch, C channels, H height, W width.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from lightning_modules.networks import create_network
from lightning_modules.tasks.image.mixing import mix, mixed_cross_entropy
from lightning_modules.tasks.task import Task
from structured_init.errors import StructuredInitError

Batch = tuple[Tensor, Tensor]


class ImageClassifier(Task):
    """Classifies images. Override :meth:`configure_network` to bring an architecture of your own.

    Logs ``{train,val,test}/accuracy`` and ``{train,val,test}/loss`` once per epoch. The training loss is that of the
    mixed and smoothed targets; the others are plain cross-entropy.

    Args:
        network: a preset of ours, a model of timm, or a ``class_path`` whose ``init_args`` say everything.
        network_args: further arguments of a network given by name.
        num_classes: outputs of the network; taken from the data on the command line.
        image_size: side of the square image in pixels; taken from the data on the command line.
        in_channels: channels of the image; taken from the data on the command line.
        optimizer: builds the optimizer from parameter groups; its ``lr`` is the peak of the schedule.
        warmup_epochs: epochs of linear warmup; may be a fraction.
        warmup_lr: learning rate of the first step, when there is a warmup.
        min_lr: learning rate at the end of the cosine.
        label_smoothing: share of the target spread over all classes, in [0, 1).
        mixup: parameter of mixup's Beta distribution; 0 is off.
        cutmix: parameter of CutMix's Beta distribution; 0 is off. With both, each batch takes one of the two.
        seed: of mixup and CutMix, which are functions of (seed, epoch, batch) and so survive a resumption; ``None``
            takes the seed of ``seed_everything``, or 0.
        compile: compile the network, in place, when it first runs.
        lr_schedule: pairs [share of the run, share of ``lr``], joined by straight lines, in place of warmup and cosine.
        decay_all: apply the optimizer's weight decay to biases, norms, positions and tokens as well.

    Raises:
        StructuredInitError: unknown network or argument, sizes that do not divide, shares out of range, a schedule
            that is no curve.
    """

    headline = ("accuracy", "max")

    def __init__(
        self,
        network: str | nn.Module = "vit_tiny_patch2_32",
        network_args: dict[str, Any] | None = None,
        num_classes: int = 10,
        image_size: int = 32,
        in_channels: int = 3,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.05),
        warmup_epochs: float = 0.0,
        warmup_lr: float = 1e-5,
        min_lr: float = 1e-6,
        label_smoothing: float = 0.0,
        mixup: float = 0.0,
        cutmix: float = 0.0,
        seed: int | None = None,
        compile: bool = False,
        lr_schedule: list[list[float]] | None = None,
        decay_all: bool = False,
    ) -> None:
        _check_shares(label_smoothing, mixup, cutmix)
        self.network_args = dict(network_args or {})
        self.num_classes, self.image_size, self.in_channels = num_classes, image_size, in_channels
        self.label_smoothing, self.mixup, self.cutmix = label_smoothing, mixup, cutmix
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else seed
        self._given_network = (network,)  # in a tuple: a bare module would register before super().__init__
        super().__init__(optimizer, warmup_epochs, warmup_lr, min_lr, compile, lr_schedule, decay_all)
        metrics = MetricCollection(
            {
                "accuracy": MulticlassAccuracy(num_classes, average="micro", validate_args=False),
                "loss": MeanMetric(nan_strategy="disable"),  # any other strategy waits for the device at every step
            },
            compute_groups=False,
        )
        self.train_metrics = metrics.clone("train/")
        self.val_metrics = metrics.clone("val/")
        self.test_metrics = metrics.clone("test/")
        self._first_batch_checked = False

    def configure_network(self) -> nn.Module:
        """Build the network from ``num_classes``, ``image_size``, ``in_channels`` and ``network_args``."""
        (network,) = self._given_network
        if isinstance(network, nn.Module):
            return network
        sizes = {"num_classes": self.num_classes, "image_size": self.image_size, "in_channels": self.in_channels}
        return create_network(network, **{**sizes, **self.network_args})

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, classes) of images (B, C, H, W)."""
        return self.network(images)

    def probe_inputs(self, batch: Batch) -> Tensor:
        """Return the images of a batch: attention is captured on them."""
        return batch[0]

    def setup(self, stage: str) -> None:
        """Compare the classes of the data with the network's.

        Raises:
            StructuredInitError: the numbers differ.
        """
        classes = getattr(getattr(self.trainer, "datamodule", None), "num_classes", None)
        if classes is not None and classes != self.num_classes:
            raise StructuredInitError(
                f"the data has {classes} classes, the network {self.num_classes}: set num_classes"
            )

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the loss of a batch, mixed if asked for; its accuracy is counted on the heavier of the two labels."""
        images, labels = self._checked(batch)
        rng = np.random.default_rng([self.seed, self.current_epoch, batch_idx, self.global_rank])
        images, weight = mix(images, mixup=self.mixup, cutmix=self.cutmix, rng=rng)
        logits = self(images)
        loss = mixed_cross_entropy(logits, labels, weight, self.label_smoothing)
        self._record(self.train_metrics, logits, labels if weight >= 0.5 else labels.roll(1, 0), loss)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Record accuracy and cross-entropy."""
        self._evaluate(self.val_metrics, batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Record accuracy and cross-entropy."""
        self._evaluate(self.test_metrics, batch)

    def on_train_epoch_end(self) -> None:
        """Log the epoch's accuracy and loss; Lightning then computes and resets them."""
        self.log_dict(self.train_metrics)

    def on_validation_epoch_end(self) -> None:
        """Log the validation's accuracy and loss."""
        self.log_dict(self.val_metrics, prog_bar=True)

    def on_test_epoch_end(self) -> None:
        """Log the test's accuracy and loss."""
        self.log_dict(self.test_metrics)

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return class probabilities (B, classes)."""
        return self(self.probe_inputs(batch)).softmax(-1)

    def _evaluate(self, metrics: MetricCollection, batch: Batch) -> None:
        images, labels = self._checked(batch)
        logits = self(images)
        self._record(metrics, logits, labels, F.cross_entropy(logits, labels))

    def _record(self, metrics: MetricCollection, logits: Tensor, labels: Tensor, loss: Tensor) -> None:
        """Count a batch. Logging here as well would cost a millisecond a step."""
        metrics["accuracy"].update(logits.detach(), labels)
        metrics["loss"].update(loss.detach().expand(len(labels)))  # one per image: this strategy ignores weights

    def _checked(self, batch: Batch) -> Batch:
        """Look at the first batch, and at no later one: reading labels waits for the device."""
        if not self._first_batch_checked and not (isinstance(batch, tuple | list) and len(batch) == 2):
            raise StructuredInitError(
                f"a batch is a pair of images and labels, this one is a {type(batch).__name__}: give image data"
            )
        images, labels = batch
        if not self._first_batch_checked:
            _check_batch(images, labels, self.num_classes, self.image_size, self.in_channels)
            self._first_batch_checked = True
        return images, labels


def _check_shares(label_smoothing: float, mixup: float, cutmix: float) -> None:
    """Refuse shares that mean nothing."""
    if not 0 <= label_smoothing < 1:
        raise StructuredInitError(f"label_smoothing must be in [0, 1), not {label_smoothing}")
    for name, value in {"mixup": mixup, "cutmix": cutmix}.items():
        if value < 0:
            raise StructuredInitError(f"{name} must be 0 (off) or positive, not {value}")


def _check_batch(images: Tensor, labels: Tensor, num_classes: int, image_size: int, in_channels: int) -> None:
    """Refuse images and labels that do not fit the network, before it fails in a device kernel."""
    if tuple(images.shape[1:]) != (in_channels, image_size, image_size):
        raise StructuredInitError(
            f"the images are {' × '.join(map(str, images.shape[1:]))} (channels × height × width), the model expects "
            f"{in_channels} × {image_size} × {image_size}: set in_channels and image_size"
        )
    if not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise StructuredInitError(
            f"the labels run from {int(labels.min())} to {int(labels.max())}, the network has {num_classes} classes"
        )

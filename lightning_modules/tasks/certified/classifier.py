"""Image classification with a certificate: no perturbation up to a radius changes the prediction.

Letters: B batch, C channels, H height, W width, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.func import functional_call
from torchmetrics import MeanMetric, Metric, MetricCollection

from lightning_modules.tasks.certified.attacks import Box, exact_arithmetic, l2_pgd
from lightning_modules.tasks.certified.certificate import certified, margins
from lightning_modules.tasks.image import Batch, ImageClassifier
from structured_init.analysis.lipschitz import lipschitz_bound
from structured_init.util.arguments import check_positive, check_whole
from structured_init.util.errors import StructuredInitError

PIXEL = 1 / 255  # epsilons are given in it, for pixels in [0, 1]
LEVELS = (36.0, 72.0, 108.0, 255.0)
PUBLISHED_SCHEDULE = ((0.0, 0.0), (0.4, 1.0), (0.8, 0.05), (1.0, 0.0))


class CertifiedClassifier(ImageClassifier):
    """Trains for margins, and certifies its predictions by a Lipschitz bound that is computed from the layers.

    Images are pixels in [0, 1] minus a mean, **not divided by a standard deviation** (``std: [1.0, 1.0, 1.0]`` in the
    data), so that radii are in units of pixels. Epsilons are given in 1/255 of that unit, as the literature writes
    them: 36 is an L2 radius of 36/255. A prediction is certified where it leads by more than √2·ε·L.

    Logs, beside accuracy and loss, ``{val,test}/certified_accuracy_36`` for each epsilon and
    ``{val,test}/lipschitz_upper``, the layers' bound L; in the test also ``test/pgd_accuracy_36``, what attacks found.
    A test in which an attack changes a certified prediction ends with an error. Evaluation is in float32 whatever the
    precision of the training.

    Args:
        network: ``kw_large``, or a ``class_path`` of any network whose layers have known bounds.
        network_args: further arguments of a network given by name: ``width`` and ``conv``.
        num_classes: outputs of the network; taken from the data on the command line.
        image_size: side of the square image in pixels; taken from the data on the command line.
        in_channels: channels of the image; taken from the data on the command line.
        optimizer: builds the optimizer from parameter groups; its ``lr`` is the peak of the schedule.
        lr_schedule: pairs [share of the run, share of ``lr``], joined by straight lines; null takes the published
            [[0, 0], [0.4, 1], [0.8, 0.05], [1, 0]].
        margin: of the multi-margin loss, in units of the logits.
        epsilons: radii to certify, in 1/255; null takes 36, 72, 108 and 255; with [] no certificate is asked for.
        pgd_epsilons: radii to attack, in 1/255; null takes ``epsilons``; [] for no attack.
        pgd_steps: steps of the attack.
        pgd_step_size: length of a step, as a share of the radius.
        seed: of the attacks' starts; ``None`` takes the seed of ``seed_everything``, or 0.
        compile: compile the network, in place, when it first runs.

    Raises:
        StructuredInitError: unknown network or argument, sizes that do not divide, an epsilon below 1; when it runs:
            scaled images, a network whose bound is unknown, a certificate that an attack has broken.
    """

    def __init__(
        self,
        network: str | nn.Module = "kw_large",
        network_args: dict[str, Any] | None = None,
        num_classes: int = 10,
        image_size: int = 32,
        in_channels: int = 3,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
        lr_schedule: list[list[float]] | None = None,
        margin: float = 0.5,
        epsilons: list[float] | None = None,
        pgd_epsilons: list[float] | None = None,
        pgd_steps: int = 10,
        pgd_step_size: float = 0.25,
        seed: int | None = None,
        compile: bool = False,
    ) -> None:
        check_positive("CertifiedClassifier", margin=margin, pgd_step_size=pgd_step_size)
        check_whole("CertifiedClassifier", pgd_steps=pgd_steps)
        self.epsilons = LEVELS if epsilons is None else epsilons
        self.pgd_epsilons = self.epsilons if pgd_epsilons is None else pgd_epsilons
        check_radii(self.epsilons)
        check_radii(self.pgd_epsilons)
        self.margin, self.pgd_steps, self.pgd_step_size = margin, pgd_steps, pgd_step_size
        self.bound = math.inf  # of the weights of the present evaluation; infinity certifies nothing
        schedule = PUBLISHED_SCHEDULE if lr_schedule is None else lr_schedule
        kept = {"optimizer": optimizer, "seed": seed, "compile": compile, "lr_schedule": schedule}
        super().__init__(network, network_args, num_classes, image_size, in_channels, **kept)
        found: dict[str, Metric] = {}
        for epsilon in self.epsilons:
            found[metric_name("certified_accuracy", epsilon)] = MeanMetric(nan_strategy="disable")
        self.val_robustness = MetricCollection(dict(found), prefix="val/", compute_groups=False)
        for epsilon in self.pgd_epsilons:
            found[metric_name("pgd_accuracy", epsilon)] = MeanMetric(nan_strategy="disable")
        self.test_robustness = MetricCollection(found, prefix="test/", compute_groups=False).clone()

    def setup(self, stage: str) -> None:
        """Refuse data that do not fit: other classes than the network's, or images that are scaled."""
        super().setup(stage)
        std = getattr(getattr(self.trainer, "datamodule", None), "std", None)
        if stage != "predict" and std is not None and any(abs(value - 1) > 1e-6 for value in std):
            raise StructuredInitError(
                f"the data divide pixels by std {[round(value, 4) for value in std]}, so that radii would not be in "
                f"pixels: give the data its mean, and std: {[1.0] * len(std)}"
            )

    def lipschitz_bound(self) -> float:
        """Compute the bound of the present weights from the layers.

        Raises:
            StructuredInitError: the bound of a layer is unknown, or the weights are not float32 or float64.
        """
        if any(p.dtype not in (torch.float32, torch.float64) for p in self.network.parameters()):
            raise StructuredInitError(
                "a certificate needs float32 weights: set trainer.precision to 32-true, or bf16-mixed in training"
            )
        with exact_arithmetic(self.device):
            example = torch.zeros(1, self.in_channels, self.image_size, self.image_size, device=self.device)
            return lipschitz_bound(self.network, example)

    def _certify(self, split: str) -> None:
        """Let the certificates of an epoch stand on the weights as they are now."""
        if self.epsilons:
            self.bound = self.lipschitz_bound()
            self.log(f"{split}/lipschitz_upper", self.bound)

    def on_validation_epoch_start(self) -> None:
        self._certify("val")

    def on_test_epoch_start(self) -> None:
        self._certify("test")

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        images, labels = batch
        logits = self(images)
        loss = self._margin_loss(logits, labels)
        self.count(self.train_metrics, logits, labels, loss)
        return loss

    def evaluate(self, split: str, batch: Batch, batch_idx: int) -> None:
        images, labels = batch
        found: dict[str, Tensor] = {}
        with exact_arithmetic(self.device):
            images, labels = images.float().clone(), labels.clone()  # what inference mode made has no gradient
            logits = self(images)
            loss = self._margin_loss(logits, labels)
            for epsilon in self.epsilons:
                name = metric_name("certified_accuracy", epsilon)
                found[name] = certified(logits, labels, epsilon=epsilon * PIXEL, lipschitz=self.bound)
            if split == "test":
                found |= self._attacked(images, labels, logits, batch_idx)
        self.count(self.known_metrics(split), logits, labels, loss)
        metrics = self.val_robustness if split == "val" else self.test_robustness
        for name, values in found.items():
            metrics[name].update(values.float())

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        self.log_dict(self.val_robustness)

    def on_test_epoch_end(self) -> None:
        super().on_test_epoch_end()
        self.log_dict(self.test_robustness)

    def _attacked(self, images: Tensor, labels: Tensor, logits: Tensor, batch_idx: int) -> dict[str, Tensor]:
        """Return what attacks find on a batch, by metric, (B,) each; refuse a certificate that one breaks."""
        weights = {name: parameter.detach() for name, parameter in self.network.named_parameters()}

        def network(points: Tensor) -> Tensor:  # differentiated in its input alone
            return functional_call(self.network, weights, (points,))

        # The generator depends on nothing that ran before: a test twice is the same test.
        (word,) = np.random.SeedSequence([self.seed, batch_idx, self.global_rank]).generate_state(1)
        generator = torch.Generator().manual_seed(int(word))
        found: dict[str, Tensor] = {}
        for epsilon in self.pgd_epsilons:
            radius = epsilon * PIXEL
            search = {"epsilon": radius, "steps": self.pgd_steps, "step_size": self.pgd_step_size * radius}
            changed = l2_pgd(network, images, labels, generator=generator, box=self._box(), **search)
            right = margins(network(changed), labels) > 0
            sure = certified(logits, labels, epsilon=radius, lipschitz=self.bound)
            broken = int((sure & ~right).sum())
            if broken:
                raise StructuredInitError(
                    f"PGD changed {broken} certified predictions of a batch, so the Lipschitz bound behind them does "
                    "not hold: a rule given to register_lipschitz is wrong"
                )
            found[metric_name("pgd_accuracy", epsilon)] = right
        return found

    def _margin_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.multi_margin_loss(logits.float(), labels, margin=self.margin)

    def _box(self) -> Box | None:
        """Return what the pixels 0 and 1 become, where the mean is known."""
        mean = getattr(getattr(self.trainer, "datamodule", None), "mean", None)
        if mean is None:
            return None
        zero = -torch.tensor(mean, dtype=torch.float32, device=self.device).view(-1, 1, 1)
        return zero, zero + 1


def metric_name(metric: str, epsilon: float) -> str:
    """Return a metric's name at a radius in 1/255: ``certified_accuracy_36``, ``certified_accuracy_25_5``."""
    return f"{metric}_{epsilon:g}".replace(".", "_")


def check_radii(epsilons: Sequence[float]) -> None:
    """Refuse radii that were meant in other units: less than one step of a colour is no radius of interest."""
    for epsilon in epsilons:
        if not epsilon >= 1:
            raise StructuredInitError(f"epsilons are in 1/255 of the pixels' range and at least 1, not {epsilon}")

"""Image classification with a certificate: no perturbation up to a radius changes the prediction.

Letters: B batch, C channels, H height, W width, K classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torchmetrics import MaxMetric, MeanMetric, Metric, MetricCollection, SumMetric

from lightning_modules.tasks.certified.attacks import Box, empirical_lipschitz, exact_arithmetic, frozen, l2_pgd
from lightning_modules.tasks.certified.certificate import CertifiedAccuracy, certified, margins, output_distances
from lightning_modules.tasks.image import Batch, ImageClassifier
from structured_init.analysis.lipschitz import lipschitz_bound
from structured_init.arguments import check_known, check_positive, check_whole
from structured_init.errors import StructuredInitError
from structured_init.layers import CayleyLinear

PIXEL = 1 / 255  # epsilons are given in it, for pixels in [0, 1]
SEARCH_RADIUS = 36.0  # within which the largest ratio is looked for, as published


@dataclass(frozen=True)
class Attack:
    """How hard to search: arguments of :class:`CertifiedClassifier`, those of PGD without their prefix."""

    epsilons: Sequence[float]
    steps: int
    step_size: float
    restarts: int
    lipschitz_steps: int


class RobustnessMetrics(nn.Module):
    """Metrics of one split, ``val`` or ``test``, named as they are logged; radii to certify are in 1/255."""

    def __init__(self, split: str, epsilons: Sequence[float], attack: Attack | None) -> None:
        super().__init__()
        self.attack = attack
        metrics: dict[str, Metric] = {}
        for epsilon in epsilons:
            metrics[metric_name("certified_accuracy", epsilon)] = CertifiedAccuracy(epsilon * PIXEL, float("inf"))
        if epsilons:
            metrics["lipschitz_upper"] = MaxMetric(nan_strategy="disable")
        for epsilon in attack.epsilons if attack is not None and attack.steps else ():
            metrics[metric_name("pgd_accuracy", epsilon)] = MeanMetric(nan_strategy="disable")
        if attack is not None and attack.lipschitz_steps:
            metrics["lipschitz_lower"] = MaxMetric(nan_strategy="disable")
        self.logged = MetricCollection(metrics, prefix=f"{split}/", compute_groups=False)
        self.broken = SumMetric(nan_strategy="disable")

    @property
    def certificates(self) -> Iterator[CertifiedAccuracy]:
        """The metrics that stand on a bound."""
        return (metric for metric in self.logged.values() if isinstance(metric, CertifiedAccuracy))

    def certify(self, bound: float, distances: Tensor | None) -> None:
        """Let all certificates of the coming epoch stand on a bound."""
        for metric in self.certificates:
            metric.lipschitz, metric.distances = bound, distances
        self.logged["lipschitz_upper"].update(bound)

    def attacked(
        self,
        network: nn.Module,
        images: Tensor,
        labels: Tensor,
        logits: Tensor,
        *,
        generator: torch.Generator,
        box: Box | None,
    ) -> dict[str, Tensor]:
        """Return what attacks find on a batch, by metric; ``broken`` counts certified predictions that one changed.

        Images are (B, C, H, W), labels (B,), logits (B, K); the network evaluates, outside of inference mode.
        """
        found: dict[str, Tensor] = {}
        attack = self.attack
        if attack is None:
            return found
        with frozen(network):
            for epsilon in attack.epsilons if attack.steps else ():
                radius = epsilon * PIXEL
                search = {"steps": attack.steps, "step_size": attack.step_size * radius, "restarts": attack.restarts}
                changed = l2_pgd(network, images, labels, epsilon=radius, generator=generator, box=box, **search)
                right = margins(network(changed), labels) > 0
                found[metric_name("pgd_accuracy", epsilon)] = right.float()
                found["broken"] = found.get("broken", 0) + (self._certified(logits, labels, radius) & ~right).sum()
            if attack.lipschitz_steps:
                search = {"radius": SEARCH_RADIUS * PIXEL, "steps": attack.lipschitz_steps, "generator": generator}
                found["lipschitz_lower"] = empirical_lipschitz(network, images, **search)
        return found

    def _certified(self, logits: Tensor, labels: Tensor, radius: float) -> Tensor:
        """Tell what the present bound certifies at any radius; nothing where no certificate was asked for."""
        metric = next(self.certificates, None)  # all stand on one bound
        if metric is None:
            return torch.zeros_like(labels, dtype=torch.bool)
        return certified(logits, labels, epsilon=radius, lipschitz=metric.lipschitz, distances=metric.distances)

    def update(self, logits: Tensor, labels: Tensor, found: Mapping[str, Tensor]) -> None:
        """Count a batch, in whatever mode the metrics were reset: logits (B, K), and what :meth:`attacked` found."""
        for metric in self.certificates:
            metric.update(logits, labels)
        for name, values in found.items():
            (self.broken if name == "broken" else self.logged[name]).update(values)

    def refuse_broken(self) -> None:
        """Stop where an attack has changed a certified prediction, and say how many there were."""
        broken = int(self.broken.compute()) if self.broken.update_called else 0
        self.broken.reset()
        if broken:
            raise StructuredInitError(
                f"PGD changed {broken} certified predictions, so the Lipschitz bound behind them does not hold: "
                "a rule given to register_lipschitz is wrong"
            )


def metric_name(metric: str, epsilon: float) -> str:
    """Return a metric's name at a radius in 1/255: ``certified_accuracy_36``, ``certified_accuracy_25_5``."""
    return f"{metric}_{epsilon:g}".replace(".", "_")


LEVELS = (36.0, 72.0, 108.0, 255.0)
PUBLISHED_SCHEDULE = ((0.0, 0.0), (0.4, 1.0), (0.8, 0.05), (1.0, 0.0))
CERTIFICATES = ("margin", "last_layer")


class CertifiedClassifier(ImageClassifier):
    """Trains for margins, and certifies its predictions by a Lipschitz bound that is computed from the layers.

    Images are pixels in [0, 1] minus a mean, **not divided by a standard deviation** (``std: [1.0, 1.0, 1.0]`` in the
    data), so that radii are in units of pixels. Epsilons are given in 1/255 of that unit, as the literature writes
    them: 36 is an L2 radius of 36/255.

    Logs, beside accuracy and loss, ``{val,test}/certified_accuracy_36`` for each epsilon and
    ``{val,test}/lipschitz_upper``, the layers' bound that they stand on; in the test also ``test/pgd_accuracy_36`` and
    ``test/lipschitz_lower``, what attacks found. A test in which an attack changes a certified prediction ends with an
    error. Evaluation is in float32 whatever the precision of the training.

    Args:
        network: ``kw_large``, ``resnet9``, ``wide_resnet_10_10``, or a ``class_path`` of any network whose layers have
            known bounds.
        network_args: further arguments of a network given by name: ``width``, ``conv``, ….
        num_classes: outputs of the network; taken from the data on the command line.
        image_size: side of the square image in pixels; taken from the data on the command line.
        in_channels: channels of the image; taken from the data on the command line.
        optimizer: builds the optimizer from parameter groups; its ``lr`` is the peak of the schedule.
        lr_schedule: pairs [share of the run, share of ``lr``], joined by straight lines; null takes the published
            [[0, 0], [0.4, 1], [0.8, 0.05], [1, 0]].
        margin: of the multi-margin loss, in units of the logits.
        epsilons: radii to certify, in 1/255; null takes 36, 72, 108 and 255; with [] no certificate is asked for.
        certificate: ``margin`` (lead > √2·ε·L), or ``last_layer`` (lead > ε·‖w_y − w_i‖·L with L of all layers but the
            last).
        pgd_epsilons: radii to attack, in 1/255; null takes ``epsilons``.
        pgd_steps: steps of the attack from each start; 0 for no attack.
        pgd_step_size: length of a step, as a share of the radius.
        pgd_restarts: random starts of the attack.
        lipschitz_steps: of the search for the largest ratio, within the radius 36/255; 0 for none.
        attack_validation: attack in the validation, too.
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
        certificate: str = "margin",
        pgd_epsilons: list[float] | None = None,
        pgd_steps: int = 10,
        pgd_step_size: float = 0.25,
        pgd_restarts: int = 1,
        lipschitz_steps: int = 10,
        attack_validation: bool = False,
        seed: int | None = None,
        compile: bool = False,
    ) -> None:
        self.epsilons = _levels("epsilons", LEVELS if epsilons is None else epsilons)
        attacked = _levels("pgd_epsilons", self.epsilons if pgd_epsilons is None else pgd_epsilons)
        attack = Attack(attacked, pgd_steps, pgd_step_size, pgd_restarts, lipschitz_steps)
        check_positive("CertifiedClassifier", margin=margin, pgd_step_size=pgd_step_size)
        check_whole("CertifiedClassifier", least=0, pgd_steps=pgd_steps, lipschitz_steps=lipschitz_steps)
        check_whole("CertifiedClassifier", pgd_restarts=pgd_restarts)
        check_known("certificate", certificate, CERTIFICATES)
        self.margin, self.certificate = margin, certificate
        sizes = (num_classes, image_size, in_channels)
        schedule = PUBLISHED_SCHEDULE if lr_schedule is None else lr_schedule
        kept = {"optimizer": optimizer, "seed": seed, "compile": compile, "lr_schedule": schedule}
        super().__init__(network, network_args, *sizes, **kept)
        self.val_robustness = RobustnessMetrics("val", self.epsilons, attack if attack_validation else None)
        self.test_robustness = RobustnessMetrics("test", self.epsilons, attack)
        self._scale_checked = False

    def setup(self, stage: str) -> None:
        """Refuse data that do not fit: other classes than the network's, or images that are scaled."""
        super().setup(stage)
        std = getattr(getattr(self.trainer, "datamodule", None), "std", None)
        if stage != "predict" and std is not None and any(abs(value - 1) > 1e-6 for value in std):
            raise StructuredInitError(
                f"the data divide pixels by std {[round(value, 4) for value in std]}, so that radii would not be in "
                f"pixels: give the data its mean, and std: {[1.0] * len(std)}"
            )

    def lipschitz_bound(self) -> tuple[float, Tensor | None]:
        """Compute the bound of the present weights from the layers.

        Returns:
            A bound of the network and None; or, for ``last_layer``, a bound of all layers before the last, and the
            distances between the last one's rows (K, K).

        Raises:
            StructuredInitError: the bound of a layer is unknown, or the weights are not float32 or float64.
        """
        if any(p.dtype not in (torch.float32, torch.float64) for p in self.network.parameters()):
            raise StructuredInitError(
                "a certificate needs float32 weights: set trainer.precision to 32-true, or bf16-mixed in training"
            )
        with exact_arithmetic(self.device):
            example = torch.zeros(1, self.in_channels, self.image_size, self.image_size, device=self.device)
            whole = lipschitz_bound(self.network, example)
            if self.certificate == "margin":
                return whole, None
            features, last = _split(self.network)
            return lipschitz_bound(features, example), output_distances(last)

    def on_fit_start(self) -> None:
        """Find out before the training, not after it, that a bound is unknown."""
        if self.epsilons:
            self.lipschitz_bound()

    def on_validation_epoch_start(self) -> None:
        if self.epsilons:  # with the weights as they are now
            self.val_robustness.certify(*self.lipschitz_bound())

    def on_test_epoch_start(self) -> None:
        if self.epsilons:
            self.test_robustness.certify(*self.lipschitz_bound())

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        images, labels = self._checked(batch)
        logits = self.check_logits(self(images))
        loss = self._margin_loss(logits, labels)
        self.count(self.train_metrics, logits, labels, loss)
        return loss

    def evaluate(self, split: str, batch: Batch, batch_idx: int) -> None:
        images, labels = self._checked(batch)
        if not self._scale_checked:
            span = (images.amax((0, 2, 3)) - images.amin((0, 2, 3))).max().item()
            if span > 1 + 1e-3:
                raise StructuredInitError(
                    f"the images span {span:.2f} in a channel, where pixels in [0, 1] span at most 1: radii are in "
                    "pixels, so subtract a mean and divide by nothing"
                )
            self._scale_checked = True
        robustness = self.val_robustness if split == "val" else self.test_robustness
        with exact_arithmetic(self.device):
            images, labels = images.float().clone(), labels.clone()  # what inference mode made has no gradient
            logits = self.check_logits(self(images))
            loss = self._margin_loss(logits, labels)
            # The generator depends on nothing that ran before: a test twice is the same test.
            (word,) = np.random.SeedSequence([self.seed, batch_idx, self.global_rank]).generate_state(1)
            surroundings = {"generator": torch.Generator().manual_seed(int(word)), "box": self._box()}
            found = robustness.attacked(self.network, images, labels, logits, **surroundings)
        self.count(self.known_metrics(split), logits, labels, loss)
        robustness.update(logits, labels, found)

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        self.log_dict(self.val_robustness.logged)
        self.val_robustness.refuse_broken()

    def on_test_epoch_end(self) -> None:
        super().on_test_epoch_end()
        self.log_dict(self.test_robustness.logged)
        self.test_robustness.refuse_broken()

    def _margin_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.multi_margin_loss(logits.float(), labels, margin=self.margin)

    def _box(self) -> tuple[Tensor, Tensor] | None:
        """Return what the pixels 0 and 1 become, where the mean is known."""
        mean = getattr(getattr(self.trainer, "datamodule", None), "mean", None)
        if mean is None:
            return None
        zero = -torch.tensor(mean, dtype=torch.float32, device=self.device).view(-1, 1, 1)
        return zero, zero + 1


def _levels(name: str, epsilons: Sequence[float]) -> tuple[float, ...]:
    """Refuse radii that were meant in other units: less than one step of a colour is no radius of interest."""
    for epsilon in epsilons:
        if not epsilon >= 1:
            meant = f": did you mean {epsilon * 255:g}?" if epsilon > 0 else ""
            raise StructuredInitError(f"{name} are in 1/255 of the pixels' range and at least 1, not {epsilon}{meant}")
    return tuple(float(epsilon) for epsilon in epsilons)


def _split(network: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Return all layers before the last, and the last, of a network that is their composition and nothing else."""
    plain = type(network).forward is nn.Sequential.forward and "forward" not in vars(network)
    if plain and isinstance(network[-1], (nn.Linear, CayleyLinear)):
        return nn.Sequential(*network[:-1]), network[-1]
    raise StructuredInitError(
        "certificate 'last_layer' needs a network that is an nn.Sequential with a linear layer at its end"
    )

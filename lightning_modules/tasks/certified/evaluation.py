"""All that one split is judged by: certificates, attacks, and whether the two agree.

Letters: B batch, K classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torchmetrics import MaxMetric, MeanMetric, MetricCollection, SumMetric

from lightning_modules.tasks.certified.certificate import certified, margins
from lightning_modules.tasks.certified.certified_accuracy import CertifiedAccuracy
from lightning_modules.tasks.certified.empirical_lipschitz import empirical_lipschitz
from lightning_modules.tasks.certified.exact import frozen
from lightning_modules.tasks.certified.pgd import Box, l2_pgd
from structured_init.errors import StructuredInitError

PIXEL = 1 / 255  # epsilons are given in it, for pixels in [0, 1]
SEARCH_RADIUS = 36.0  # within which the largest ratio is looked for, as published


@dataclass(frozen=True)
class Attack:
    """How hard to search.

    Attributes:
        epsilons: radii, in 1/255.
        steps: of PGD from each start.
        step_size: length of a step, as a share of the radius.
        restarts: random starts of PGD.
        lipschitz_steps: of the search for the largest ratio.
    """

    epsilons: Sequence[float]
    steps: int
    step_size: float
    restarts: int
    lipschitz_steps: int


class RobustnessMetrics(nn.Module):
    """Metrics of one split, named as they are logged.

    Args:
        split: ``val`` or ``test``.
        epsilons: radii to certify, in 1/255.
        attack: None for certificates alone.
    """

    def __init__(self, split: str, epsilons: Sequence[float], attack: Attack | None) -> None:
        super().__init__()
        self.attack = attack
        upper = {"lipschitz_upper": MaxMetric(nan_strategy="disable")} if epsilons else {}
        certificates = {
            metric_name("certified_accuracy", epsilon): CertifiedAccuracy(epsilon * PIXEL, float("inf"))
            for epsilon in epsilons
        }
        self.logged = MetricCollection(
            {**certificates, **upper, **_attack_metrics(attack)}, prefix=f"{split}/", compute_groups=False
        )
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

        Args:
            network: in evaluation mode, outside of inference mode.
            images: (B, C, H, W).
            labels: (B,) class numbers.
            logits: the network's, (B, K).
            generator: of random starts.
            box: what pixels may be.
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
        """Stop where an attack has changed a certified prediction.

        Raises:
            StructuredInitError: how many there were.
        """
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


def _attack_metrics(attack: Attack | None) -> dict[str, MeanMetric | MaxMetric]:
    if attack is None:
        return {}
    epsilons = attack.epsilons if attack.steps else ()
    accuracies = {metric_name("pgd_accuracy", epsilon): MeanMetric(nan_strategy="disable") for epsilon in epsilons}
    lower = {"lipschitz_lower": MaxMetric(nan_strategy="disable")} if attack.lipschitz_steps else {}
    return {**accuracies, **lower}

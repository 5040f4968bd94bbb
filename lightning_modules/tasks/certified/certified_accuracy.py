"""Certified accuracy as a metric whose state adds up over batches and processes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from lightning_modules.tasks.certified.certificate import certified
from structured_init.errors import StructuredInitError


class CertifiedAccuracy(Metric):
    """Share of images whose label is predicted and cannot be changed by any perturbation of L2 norm ε.

    It counts margin > √2·ε·L, or the pairwise form of :func:`certified`. What it says is as true as ``lipschitz``:
    take that from :func:`structured_init.analysis.lipschitz.lipschitz_bound`.

    Args:
        epsilon: L2 radius, in the units of the network's input.
        lipschitz: an upper bound of the network's constant; infinity certifies nothing. It may be set anew between
            epochs.
        distances: (K, K) distances between the last layer's rows, with ``lipschitz`` of all but that layer.
        kwargs: of :class:`torchmetrics.Metric`.

    Raises:
        StructuredInitError: ε or L is negative or not a number.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    certified: Tensor
    total: Tensor

    def __init__(self, epsilon: float, lipschitz: float, distances: Tensor | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not (math.isfinite(epsilon) and epsilon >= 0):
            raise StructuredInitError(f"epsilon must be a radius of 0 or more, not {epsilon}")
        self.epsilon = float(epsilon)
        self.distances = distances
        self.lipschitz = lipschitz
        self.add_state("certified", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("total", torch.tensor(0), dist_reduce_fx="sum")

    @property
    def lipschitz(self) -> float:
        """The bound that the certificates stand on."""
        return self._lipschitz

    @lipschitz.setter
    def lipschitz(self, bound: float) -> None:
        if not bound >= 0:
            raise StructuredInitError(f"a Lipschitz bound must be 0 or more, not {bound}")
        self._lipschitz = float(bound)

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Count a batch: logits (B, K) and labels (B,)."""
        counted = certified(logits, labels, epsilon=self.epsilon, lipschitz=self.lipschitz, distances=self.distances)
        self.certified += counted.sum()
        self.total += labels.numel()

    def compute(self) -> Tensor:
        """Return the share of certified images."""
        return self.certified.float() / self.total

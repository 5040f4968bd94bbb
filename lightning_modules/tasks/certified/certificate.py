"""What a Lipschitz constant certifies: a prediction that leads by enough cannot be changed nearby.

Letters: B batch, K classes, D features.

If every logit difference f_y − f_i is L·d_yi-Lipschitz in the L2 norm and f_y − f_i > ε·L·d_yi for every i ≠ y, then no
change of the input of norm ε or less makes any i reach y. For any L-Lipschitz f the difference is (e_y − e_i)ᵀf, so
d = ‖e_y − e_i‖ = √2 (Tsuzuku et al. 2018, 1802.04034). For f = W h + b with an L-Lipschitz h it is ‖w_y − w_i‖ (Singla
et al. 2022, 2108.04062, "last layer normalization").
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from structured_init.errors import StructuredInitError
from structured_init.layers import CayleyLinear


def margins(logits: Tensor, labels: Tensor) -> Tensor:
    """Return by how much each label (B,) leads the best of the other logits (B, K); zero or less where it does not."""
    own = logits.gather(1, labels[:, None]).squeeze(1)
    others = logits.scatter(1, labels[:, None], -math.inf)
    return own - others.amax(1)


def certified(
    logits: Tensor, labels: Tensor, *, epsilon: float, lipschitz: float, distances: Tensor | None = None
) -> Tensor:
    """Tell for each image, (B,), whether its label is predicted, and stays so within ε; a tie is not a lead.

    Args:
        logits: (B, K).
        labels: (B,) class numbers.
        epsilon: L2 radius, in the units of the network's input.
        lipschitz: an upper bound of the constant of the network, or of all but its last layer where ``distances`` are
            given.
        distances: (K, K) distances ‖w_i − w_j‖ of the last layer's rows; None for √2.
    """
    logits = logits.double()
    differences = logits.gather(1, labels[:, None]) - logits
    needed = torch.full_like(logits, math.sqrt(2)) if distances is None else distances.to(logits)[labels]
    ahead = differences > epsilon * lipschitz * needed
    return ahead.scatter(1, labels[:, None], True).all(1)


def output_distances(layer: nn.Linear | CayleyLinear) -> Tensor:
    """Return the distances between the rows of a linear layer's weight as it acts, (K, K), in float64.

    Raises:
        StructuredInitError: the layer is another function than its class has, so that its weight says nothing.
    """
    cls = CayleyLinear if isinstance(layer, CayleyLinear) else nn.Linear
    hooked = layer._forward_hooks or layer._forward_pre_hooks
    if hooked or not isinstance(layer, cls) or type(layer).forward is not cls.forward or "forward" in vars(layer):
        what = "with forward hooks" if hooked else "with a forward of its own"
        raise StructuredInitError(f"certificate 'last_layer' is not known for {type(layer).__name__} {what}")
    weight = layer.matrices(layer.precision(layer.weight)) if cls is CayleyLinear else layer.weight
    rows = weight.detach().double()
    return torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")


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
        counted = certified(logits, labels, epsilon=self.epsilon, lipschitz=self.lipschitz, distances=self.distances)
        self.certified += counted.sum()
        self.total += labels.numel()

    def compute(self) -> Tensor:
        return self.certified.float() / self.total

"""What a Lipschitz constant certifies: a prediction that leads by enough cannot be changed nearby.

Letters: B batch, K classes.

For an L-Lipschitz f in the L2 norm every difference of logits (e_y − e_i)ᵀf is √2·L-Lipschitz. So if f_y − f_i > √2·ε·L
for every i ≠ y, no change of the input of norm ε or less makes any i reach y (Tsuzuku et al. 2018, 1802.04034).
"""

from __future__ import annotations

import math

from torch import Tensor


def margins(logits: Tensor, labels: Tensor) -> Tensor:
    """Return by how much each label (B,) leads the best of the other logits (B, K); zero or less where it does not."""
    own = logits.gather(1, labels[:, None]).squeeze(1)
    others = logits.scatter(1, labels[:, None], -math.inf)
    return own - others.amax(1)


def certified(logits: Tensor, labels: Tensor, *, epsilon: float, lipschitz: float) -> Tensor:
    """Tell for each image, (B,), whether its label is predicted, and stays so within ε; a tie is not a lead.

    Args:
        logits: (B, K).
        labels: (B,) class numbers.
        epsilon: L2 radius, in the units of the network's input.
        lipschitz: an upper bound of the network's constant; infinity certifies nothing.
    """
    return margins(logits.double(), labels) > math.sqrt(2) * epsilon * lipschitz

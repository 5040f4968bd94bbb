"""The biases of a layer's projections, cut into heads as their weights are."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from structured_init.layout import Projection
from structured_init.plan import Weights


@dataclass(frozen=True)
class ProjectionBias:
    """The bias that belongs to a projection's block of a host's parameter.

    Attributes:
        tensor: the host's one-dimensional parameter.
        projection: the block of the weight; heads lie along the bias as they do along the weight.
    """

    tensor: Tensor
    projection: Projection

    def get(self, weights: Weights) -> Float[Tensor, "heads head_dim"]:
        """The bias of each head, as a copy."""
        return self._heads(weights.read(self.tensor)).clone()

    def set(self, weights: Weights, value: Float[Tensor, "heads head_dim"], by: str) -> None:
        """Write the bias of each head into the overlay; the rest of the parameter keeps its value."""
        self._heads(weights.edit(self.tensor, by)).copy_(value)

    def _heads(self, full: Tensor) -> Tensor:
        block, step = self.projection, self.projection.step or self.projection.head_dim
        whole = full.narrow(0, block.start, (block.heads - 1) * step + block.head_dim)
        return whole.unfold(0, block.head_dim, step)


def projection_bias(module: nn.Module, projection: Projection) -> ProjectionBias | None:
    """Find the bias of a query, key or value projection: that of the layer in ``module`` that owns its weight.

    ``None`` where there is none.
    """
    for layer in module.modules():
        for weight, bias in (("weight", "bias"), ("in_proj_weight", "in_proj_bias")):
            owned, found = layer._parameters.get(weight), layer._parameters.get(bias)
            if owned is projection.weight and found is not None and len(found) == owned.shape[projection.axis]:
                return ProjectionBias(found, projection)
    return None

"""Looking at an offset through what is added to logits: an entry of a table that is raised, or the slopes of ALiBi.

Letters: D embed_dim, k head_dim.
"""

from __future__ import annotations

import math

from jaxtyping import Float64
from torch import Tensor

from structured_init.attention.sequence.heads import Heads, Layer, Strengths
from structured_init.util.linalg import random_orthogonal


class RelativeHeads(Heads):
    """The entry of each head for its offset is its strength; queries and keys stay the host's."""

    def __init__(self, layer: Layer) -> None:
        self.bias_table = layer.positions.relative.table
        super().__init__(layer)
        shared = ", which other layers read as well" if self.positions.relative.shared else ""
        self.how = f"a table of relative positions{shared}"

    def write(self, strengths: Strengths) -> None:
        biases = self.positions.relative
        for (head, offset), strength in zip(self.layer.looking.items(), strengths.tolist(), strict=True):
            biases.set(self.weights, head, offset, strength, "PreviousToken: relative positions")


class AlibiHeads(Heads):
    """W_q W_kᵀ = −strength · V Vᵀ/k keeps tokens from looking at themselves, so that the nearest other one is first.

    V has orthonormal columns, which gives a token's product with itself the size 1.
    """

    sufficient = 0.97  # of what the slope gives, which is the bound
    first = 0.5  # the least that is large beside a slope: more of V Vᵀ sets other tokens apart, too

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer)
        slopes = [self.positions.alibi.slopes[head].item() for head in layer.looking]
        # 1 − e^(−slope): what the first of geometrically falling weights has of their sum.
        most = ", ".join(f"{1 - math.exp(-slope):.2f}" for slope in slopes)
        told = ", ".join(f"{slope:.2g}" for slope in slopes)
        self.how = f"ALiBi: a slope of {told}, which the host computes, gives at most {most}"

    def write_query(self, head: int, factor: Tensor) -> None:
        self.query[head] = -factor * self._columns(head // self.layer.group)

    def write_key(self, key: int, factor: Tensor) -> None:
        self.key[key] = factor * self._columns(key)

    def _columns(self, key: int) -> Float64[Tensor, "D k"]:
        width, draw = self.site.head_dim, self.layer.draw(f"directions {key}")
        columns = random_orthogonal(self.site.embed_dim, width, generator=draw)
        return self.through_norm(columns) / math.sqrt(width)

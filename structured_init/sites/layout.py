"""How a host stores its matrices, and the one convention in which everybody else sees them.

Letters: H heads, D embed_dim, k head_dim. Row vectors: q = x W_q.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from structured_init.errors import StructuredInitError
from structured_init.plan import Weights


@dataclass(frozen=True)
class Projection:
    """One of the four matrices of an attention layer: a block of a host's parameter, cut into heads.

    ``nn.Linear`` stores (out, in). So query, key and value have their heads along axis 0, also inside a fused
    ``qkv``, where ``start`` says at which row the block begins, and the output projection has them along axis 1.
    A transposed ``Conv1D`` swaps the two.

    Attributes:
        weight: the host's two-dimensional parameter.
        heads: how many heads the block holds.
        head_dim: rows (or columns) per head.
        axis: the axis of ``weight`` along which the heads are stacked.
        start: where the block begins on that axis.
    """

    weight: nn.Parameter
    heads: int
    head_dim: int
    axis: int = 0
    start: int = 0

    @property
    def width(self) -> int:
        """D, the size of the other axis."""
        return self.weight.shape[1 - self.axis]

    def get(self, weights: Weights) -> Float[Tensor, "heads head_dim width"]:
        """Return the block with its heads apart, as a copy."""
        block = weights.read(self.weight).narrow(self.axis, self.start, self.heads * self.head_dim)
        return block.movedim(self.axis, 0).reshape(self.heads, self.head_dim, self.width).clone()

    def set(self, weights: Weights, value: Float[Tensor, "heads head_dim width"], by: str) -> None:
        """Write the block into the overlay; the rest of the parameter keeps its value."""
        expected = (self.heads, self.head_dim, self.width)
        if tuple(value.shape) != expected:
            name = weights.names(self.weight)[0]
            raise StructuredInitError(f"'{name}' takes (heads, head_dim, width) = {expected}, got {tuple(value.shape)}")
        block = weights.edit(self.weight, by).narrow(self.axis, self.start, self.heads * self.head_dim)
        block.copy_(value.reshape(-1, self.width).movedim(0, self.axis))


@dataclass(frozen=True)
class AttentionLayout:
    """Where one attention module keeps its matrices, and what it does around them.

    Attributes:
        query, key, value, output: the projections; key and value may have fewer heads than query.
        scale: the factor on q·k before the softmax; 1/√k where the host does not say otherwise.
        query_key_norm: the host normalizes q and k, so the scale of a query–key start has no effect.
    """

    query: Projection
    key: Projection
    value: Projection
    output: Projection
    scale: float | None = None
    query_key_norm: bool = False


@dataclass(frozen=True)
class TokenLayout:
    """The tokens of a model (or a tower of one): its grid, the tokens before it, and its positions if it has any.

    Attributes:
        grid: (rows, columns) of patches, or ``None`` for a sequence.
        prefix_tokens: class and register tokens that stand before the grid.
        positions: parameter or buffer of shape (…, tokens, D); ``None`` where the host adds none.
        first: the row of ``positions`` at which the grid begins; rows before it belong to prefix tokens.
    """

    grid: tuple[int, int] | None
    prefix_tokens: int = 0
    positions: Tensor | None = None
    first: int = 0

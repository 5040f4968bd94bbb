"""One layer whose heads are to look at offsets, and what was reached there.

Letters: H heads, Hkv key heads, D embed_dim, k head_dim.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from structured_init.attention.sequence.offsets import Offset
from structured_init.attention.sequence.share import Reached
from structured_init.draws import Draws
from structured_init.plan import Weights
from structured_init.sites.attention import AttentionSite
from structured_init.sites.bias import projection_bias
from structured_init.sites.position_kinds import AttentionPositions
from structured_init.sites.stream import norm_weight

Kind = Literal["relative", "absolute", "rotary", "alibi"]
CLEAR = 0.8  # a share from which on a head is said to look at its offset


@dataclass(frozen=True)
class Job:
    """What is asked for in one layer.

    Attributes:
        site: the layer, under the name of the writer.
        positions: those of its tokens.
        kind: those through which its heads look.
        offsets: where each head looks, ``None`` for those left to the host.
        causal: whether later tokens are hidden.
        size: rows and columns of the tokens, (1, context) of a sequence.
        target: the share of attention asked for.
        weights: the overlay.
        rng: named generators.
        reads: root mean square of what the layer reads, weights of the norm before it apart: 1 behind a norm.
    """

    site: AttentionSite
    positions: AttentionPositions
    kind: Kind
    offsets: list[Offset | None]
    causal: bool
    size: tuple[int, int]
    target: float
    weights: Weights
    rng: Draws
    reads: float = 1.0

    def draw(self, part: str) -> torch.Generator:
        """Return the generator of a named part of this layer."""
        return self.rng.generator(self.site.name, f"PreviousToken: {part}")

    @property
    def length(self) -> int:
        """N, the number of tokens."""
        return self.size[0] * self.size[1]

    @property
    def group(self) -> int:
        """How many heads share a key."""
        return self.site.num_heads // self.site.num_key_value_heads

    @property
    def heads(self) -> Iterator[tuple[int, int, Offset]]:
        """Number, number of the key and offset of every head that is written."""
        return ((head, head // self.group, offset) for head, offset in enumerate(self.offsets) if offset is not None)

    @property
    def keys(self) -> list[int]:
        """Numbers of the keys of these heads."""
        return sorted({key for _, key, _ in self.heads})

    def through_norm(self, weight: Float64[Tensor, "*heads D k"]) -> Float64[Tensor, "*heads D k"]:
        """Return the weight that reads x̂ as the given one reads x̂/(γ·rms), of mean square 1; γ is the norm's before."""
        gamma, weight = norm_weight(self.site, self.weights), weight / self.reads
        return weight if gamma is None else weight / gamma.where(gamma.abs() > 1e-3, 1)[:, None]

    def content(self, *, biased: bool) -> tuple[Float[Tensor, "heads N k"], Float[Tensor, "kv_heads N k"]]:
        """Return the host's own queries (H, N, k) and keys (Hkv, N, k) of unrelated tokens of mean square 1."""
        site = self.site
        tokens = torch.randn(self.length, site.embed_dim, dtype=torch.float64, generator=self.draw("content"))
        gamma = norm_weight(site, self.weights)
        tokens = tokens if gamma is None else tokens * gamma
        vectors = []
        for projection, weight in ((site.layout.query, site.query), (site.layout.key, site.key)):
            vectors.append(tokens @ weight.double())
            bias = projection_bias(site.module, projection)
            if biased and bias is not None:
                vectors[-1] += bias.get(self.weights).double()[:, None]
        return vectors[0], vectors[1]


@dataclass(frozen=True)
class Outcome:
    """What was reached in one layer.

    Attributes:
        reached: strength and share of each head that was written.
        ends: head → the context at whose end it still looks clearly, of those that do not at the longest.
        stream: root mean square of what attention's branch is added to.
        how: what the report says besides.
        free: coordinates that positions leave to content, where some were to be spared.
    """

    reached: dict[int, Reached]
    ends: dict[int, int]
    stream: float
    how: str
    free: Tensor | None = None

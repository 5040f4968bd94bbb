"""Attention that a network without skip connections can be trained from: products far from singular.

Letters: H heads, Hkv key–value heads, D embed_dim, k head_dim. Row vectors: q = x W_q.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float64
from torch import Tensor

from structured_init.arguments import check_choice, check_finite, check_not_negative, check_positive
from structured_init.attention.mimetic import Noise, noisy_identity, split
from structured_init.attention.products import Factors, Shared, by_key, square_width, write_products
from structured_init.draws import Draws
from structured_init.errors import StructuredInitError
from structured_init.hosts.attention import AttentionSite, required_attention_sites
from structured_init.hosts.registry import Where
from structured_init.initializer import Initializer
from structured_init.linalg import random_orthogonal, truncated_svd
from structured_init.overlay import Weights


def orthogonal_factors(
    rows: int, columns: int, rank: int, scale: float, *, generator: torch.Generator
) -> tuple[Float64[Tensor, "rows rank"], Float64[Tensor, "rank columns"]]:
    """Return cU and cVᵀ with U S Vᵀ = svd(G), G_ij ~ N(0, 1): the singular values are dropped, the product is c² U Vᵀ.

    Of ``rank`` H·k below min(D, columns), the leading vectors are kept; above it (ours), the two factors get a random
    Q Qᵀ = I between them, so that no head is empty and the product is the same. ``generator`` draws G, and then Q.
    """
    matrix, full = torch.randn(rows, columns, dtype=torch.float64, generator=generator), min(rows, columns)
    # The vectors of the longer side come from those of the shorter, and are orthogonal to 1e-9 or so: a step of Newton
    # and Schulz squares that. All of it takes a third of the time of a full decomposition.
    longer, _, shorter = truncated_svd(matrix if rows >= columns else matrix.mT, rank)
    del matrix
    step = (longer.mT @ longer).mul_(-0.5)
    step.diagonal().add_(1.5)
    longer = longer @ step
    left, right = (longer, shorter) if rows >= columns else (shorter, longer)
    if rank > full:
        mix = random_orthogonal(full, rank, generator=generator)
        left, right = left @ mix, right @ mix
    return left.mul_(scale), right.mul_(scale).mT


@dataclass(eq=False, repr=False)
class Skipless(Initializer):
    """W_q W_kᵀ ≈ αZ + βI in every head, W_v = cU and W_o = cVᵀ in every layer: made for networks without skips.

    It sets the attention of a network and nothing else. Taking the skip connections out is the network's business;
    on a network that has them, the branches are as strong as c² says, and the report cannot tell.

    Args:
        query_key: write the query–key part.
        qk_alpha: α; 2 for the supervised ViT-B, 1.8 for the DINO ViT-S.
        qk_beta: β; 0.6 for the supervised ViT-B, 1 for the DINO ViT-S.
        value_output: write the value–output part.
        vo_scale: c, positive; 3 for both.
        noise: distribution of Z, ``"normal"`` or ``"uniform"``, with variance 1/D either way.
        where: which attention layers, by shell pattern.
        cross: write cross-attention as well.

    Raises:
        StructuredInitError: at construction, a value out of range, or nothing to write; at :meth:`plan`, no attention
            layer of a known class, or a query–key product that is not square.

    Grouped queries and RoPE are treated as in ``Mimetic``, which is ours: heads that share a value share its output,
    each a part of it.

    Source: Ji et al., "Cutting the Skip", 2510.00345 (ICLR 2026), known to us at second hand, see ``docs/skipless.md``.
    """

    query_key: bool = True
    qk_alpha: float = 2.0
    qk_beta: float = 0.6
    value_output: bool = True
    vo_scale: float = 3.0
    noise: Noise = "normal"
    where: Where = None
    cross: bool = False

    def __post_init__(self) -> None:
        check_choice("Skipless", noise=(self.noise, Noise))
        check_not_negative("Skipless", qk_alpha=self.qk_alpha)
        check_finite("Skipless", qk_beta=self.qk_beta)
        check_positive("Skipless", vo_scale=self.vo_scale)
        if not self.query_key and not self.value_output:
            raise StructuredInitError("Skipless: query_key and value_output are both off: there is nothing to write")

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        sites = required_attention_sites(weights, self.where, "Skipless", cross=self.cross)
        query_key = self._query_key if self.query_key else None
        value_output = self._value_output if self.value_output else None
        write_products("Skipless", weights, sites, rng, query_key=query_key, value_output=value_output)

    def _query_key(self, site: AttentionSite, rng: Draws) -> Iterator[Callable[[], Shared]]:
        """Per head, the largest k singular values of αZ + βI, √S on either side."""
        dim = square_width("Skipless", site, "query–key", site.layout.query.width, site.layout.key.width)

        def draw(generator: torch.Generator) -> Tensor:
            return noisy_identity(dim, self.qk_alpha, self.qk_beta, noise=self.noise, generator=generator)

        return by_key(site, draw, rng.generator(site.name, "query_key"), partial(split, rank=site.head_dim))

    def _value_output(self, site: AttentionSite, rng: Draws) -> Factors:
        """Per layer, W_v = cU and W_o = cVᵀ."""
        value, generator = site.layout.value, rng.generator(site.name, "value_output")
        sizes = value.width, site.layout.output.width, value.heads * value.head_dim
        return orthogonal_factors(*sizes, self.vo_scale, generator=generator)

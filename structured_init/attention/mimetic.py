"""Mimetic initialization of self-attention: products that look like those of trained networks.

Letters: H heads, Hkv key–value heads, D embed_dim, k head_dim. Row vectors: q = x W_q.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from structured_init.attention.codes import sincos_2d
from structured_init.attention.position import two_dimensional
from structured_init.draws import Draws
from structured_init.errors import StructuredInitError
from structured_init.initializer import Initializer
from structured_init.linalg import random_orthogonal, signed_svd
from structured_init.plan import Weights
from structured_init.sites.attention import AttentionSite, required_attention_sites
from structured_init.sites.position import position_sites
from structured_init.sites.select import Where

Noise = Literal["normal", "uniform"]
Orientation = Literal["paper", "circulated"]


def noisy_identity(
    dim: int, alpha: float, beta: float, *, noise: Noise, generator: torch.Generator
) -> Float64[Tensor, "dim dim"]:
    """Return αZ + βI with Z_ij of mean 0 and variance 1/D (2305.09828, the targets of its algorithm).

    Args:
        dim: D.
        alpha: strength of the noise.
        beta: strength and sign of the identity.
        noise: N(0, 1/D) as the paper's restatements have it, or U(±√(3/D)) as the circulating code draws it.
        generator: draws Z.
    """
    if noise == "normal":
        draw = torch.randn(dim, dim, dtype=torch.float64, generator=generator) / math.sqrt(dim)
    else:
        draw = (2 * torch.rand(dim, dim, dtype=torch.float64, generator=generator) - 1) * math.sqrt(3 / dim)
    return alpha * draw + beta * torch.eye(dim, dtype=torch.float64)


def split(target: Float64[Tensor, "D D"], rank: int) -> tuple[Tensor, Tensor]:
    """Factor a target into L (D, rank) and R (rank, D), the best approximation L R of that rank.

    With U S Vᵀ = svd(target): L = U S^½ and R = S^½ Vᵀ, cut to the largest ``rank`` values, or padded with zeros
    where rank > D.
    """
    left, singular, right = signed_svd(target)
    kept = min(rank, singular.numel())
    root = singular[:kept].sqrt()
    padding = (0, rank - kept)
    left_factor = torch.nn.functional.pad(left[:, :kept] * root, padding)
    right_factor = torch.nn.functional.pad(right[:, :kept] * root, padding)
    return left_factor, right_factor.mT


def query_key_factors(
    targets: Iterable[Float64[Tensor, "D D"]], rank: int, group: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Return W_q of every head and W_k of every group of heads, each (D, rank), for one target A per head.

    A group's first head has the best rank-k product. The others have to use its W_k: with W_q = A W_k (W_kᵀ W_k)⁻¹
    the product is A Π, the target on the span of the shared keys. With ``group`` 1 every head is a first one.
    """
    queries, keys = [], []
    for head, target in enumerate(targets):
        if head % group == 0:
            left, right = split(target, rank)
            queries.append(left)
            keys.append(right.mT)
        else:
            queries.append(target @ torch.linalg.pinv(keys[-1]).mT)
    return queries, keys


class Mimetic(Initializer):
    """W_q W_kᵀ ≈ αZ + βI in every head, W_v W_o ≈ αZ − βI in every layer, and sincos positions.

    The constants are those that circulate with the method; which pair the paper prints for which product is
    unconfirmed. Biases, MLPs, norms and embeddings are left to the host or to what is composed before.

    Args:
        query_key: write the query–key part (required: a model without known attention is an error).
        qk_alpha: α of the query–key part.
        qk_beta: β of the query–key part; positive for vision.
        value_output: write the value–output part.
        vo_alpha: α of the value–output part.
        vo_beta: β of the value–output part, subtracted: the identity enters with sign −; negative for language.
        positions: ``"sincos"``, where the model has positions on a grid, or ``"keep"``.
        noise: distribution of Z, ``"normal"`` or ``"uniform"``.
        orientation: ``"paper"`` makes W_v W_o the target itself; ``"circulated"`` reproduces the missing transposes of
            the code in circulation, on which published baselines stand: there the product is Rᵀ-ordered, (R L)ᵀ.
        balance_heads: mix the value–output factors by a random orthogonal matrix, W_v O and Oᵀ W_o. The product is
            the same, and each head gets an equal share of it instead of the first taking the largest directions.
        where: which attention layers, by name.
        cross: write cross-attention as well, which the paper does not treat.

    Raises:
        StructuredInitError: at :meth:`plan`, no attention layer of a known class, or one whose products are not square.

    Grouped queries and RoPE, which the paper does not treat either, are ours: heads that share a key take their target
    on its span, the value–output product has rank Hkv·k, and under RoPE the coordinates inside a head are turned at
    random, so that the largest directions do not all fall on the fastest pairs.

    Source: Trockman & Kolter, 2305.09828; constants and orientation as circulated, see ``docs/mimetic.md``.
    """

    def __init__(
        self,
        query_key: bool = True,
        qk_alpha: float = 0.7,
        qk_beta: float = 0.7,
        value_output: bool = True,
        vo_alpha: float = 0.4,
        vo_beta: float = 0.4,
        positions: Literal["sincos", "keep"] = "sincos",
        noise: Noise = "normal",
        orientation: Orientation = "paper",
        balance_heads: bool = True,
        where: Where = None,
        cross: bool = False,
    ) -> None:
        for name, value, valid in (
            ("positions", positions, ("sincos", "keep")),
            ("noise", noise, ("normal", "uniform")),
            ("orientation", orientation, ("paper", "circulated")),
        ):
            if value not in valid:
                raise StructuredInitError(f"Mimetic: {name} must be {' or '.join(valid)}, got '{value}'")
        self.query_key = query_key
        self.qk_alpha = qk_alpha
        self.qk_beta = qk_beta
        self.value_output = value_output
        self.vo_alpha = vo_alpha
        self.vo_beta = vo_beta
        self.positions: Literal["sincos", "keep"] = positions
        self.noise: Noise = noise
        self.orientation: Orientation = orientation
        self.balance_heads = balance_heads
        self.where = where
        self.cross = cross

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        for site in weights.each(required_attention_sites(weights, self.where, "Mimetic", cross=self.cross)):
            if self.query_key:
                self._query_key(site.by("Mimetic: query_key"), rng)
            if self.value_output:
                self._value_output(site.by("Mimetic: value_output"), rng)
        if self.positions == "sincos":
            self._positions(weights)

    def _query_key(self, site: AttentionSite, rng: Draws) -> None:
        """2305.09828, Algorithm: per head, U S Vᵀ = svd(αZ + βI), W_q = U_k S_k^½, W_k = V_k S_k^½."""
        layout = site.layout
        _square(site, "query–key", layout.query.width, layout.key.width)
        generator = rng.generator(site.name, "query_key")
        targets = (
            noisy_identity(site.embed_dim, self.qk_alpha, self.qk_beta, noise=self.noise, generator=generator)
            for _ in range(site.num_heads)
        )
        group = site.num_heads // site.num_key_value_heads
        queries, keys = query_key_factors(targets, site.head_dim, group)
        if layout.rope:
            generator = rng.generator(site.name, "rope")
            turns = [random_orthogonal(site.head_dim, site.head_dim, generator=generator) for _ in keys]
            queries = [query @ turns[head // group] for head, query in enumerate(queries)]
            keys = [key @ turn for key, turn in zip(keys, turns, strict=True)]
        site.query = torch.stack(queries)
        site.key = torch.stack(keys)
        site.note_query_key()

    def _value_output(self, site: AttentionSite, rng: Draws) -> None:
        """2305.09828, Algorithm: per layer, U S Vᵀ = svd(αZ − βI), W_v = U S^½, W_o = S^½ Vᵀ."""
        layout = site.layout
        _square(site, "value–output", layout.value.width, layout.output.width)
        dim, heads, width = layout.value.width, layout.value.heads, layout.value.head_dim
        generator = rng.generator(site.name, "value_output")
        target = noisy_identity(dim, self.vo_alpha, -self.vo_beta, noise=self.noise, generator=generator)
        left, right = split(target, heads * width)
        if self.orientation == "circulated":
            left, right = self._untransposed(site, left, right)
        if self.balance_heads:
            mix = random_orthogonal(heads * width, heads * width, generator=rng.generator(site.name, "balance_heads"))
            left, right = left @ mix, mix.mT @ right
        site.value = left.reshape(dim, heads, width).movedim(1, 0)
        group = layout.output.heads // heads  # heads that share a value share its output, each a part of it
        site.output = (right.reshape(heads, width, dim) / group).repeat_interleave(group, dim=0)
        site.note_value_output()

    def _untransposed(self, site: AttentionSite, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        if left.shape[0] != left.shape[1]:
            raise StructuredInitError(
                f"Mimetic: orientation 'circulated' needs heads × head_dim = embed_dim, which '{site.name}' has not"
            )
        return left.mT, right.mT

    def _positions(self, weights: Weights) -> None:
        """Optional part: a model without positions on a grid is reported, not refused."""
        sites = position_sites(weights)
        if not sites:
            weights.skip("positions", "the model has no position embedding of a known class")
        for site in weights.each(sites):
            if site.grid is None:
                weights.skip(site.name, "a sequence has no grid for sincos positions")
            else:
                site.write(sincos_2d(two_dimensional(site), site.embed_dim), "Mimetic: positions")


def _square(site: AttentionSite, product: str, rows: int, columns: int) -> None:
    if rows != columns:
        raise StructuredInitError(
            f"Mimetic: the {product} product of '{site.name}' maps width {rows} to {columns}, where αZ + βI is square"
        )

"""Mimetic initialization of self-attention: products that look like those of trained networks.

Letters: H heads, Hkv key–value heads, D embed_dim, k head_dim. Row vectors: q = x W_q.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from structured_init.arguments import check_finite, check_flag, check_not_negative
from structured_init.attention.codes import sincos_2d
from structured_init.attention.grouped import Factors, query_key_factors
from structured_init.attention.position import two_dimensional
from structured_init.draws import Draws
from structured_init.errors import StructuredInitError
from structured_init.initializer import Initializer
from structured_init.linalg import random_orthogonal, spread, truncated_svd
from structured_init.plan import Weights
from structured_init.sites.attention import AttentionSite, required_attention_sites
from structured_init.sites.position import position_sites
from structured_init.sites.select import Where

Noise = Literal["normal", "uniform"]
Orientation = Literal["paper", "circulated"]
Precision = Literal["float64", "float32"]


def noisy_identity(
    dim: int, alpha: float, beta: float, *, noise: Noise, generator: torch.Generator, dtype: torch.dtype = torch.float64
) -> Float[Tensor, "dim dim"]:
    """Return αZ + βI with Z_ij of mean 0 and variance 1/D (2305.09828, the targets of its algorithm).

    Args:
        dim: D.
        alpha: strength of the noise.
        beta: strength and sign of the identity.
        noise: N(0, 1/D) as the paper's restatements have it, or U(±√(3/D)) as the circulating code draws it.
        generator: draws Z.
        dtype: float64 or float32; the same generator draws another Z in each.
    """
    if noise == "normal":
        target = torch.randn(dim, dim, dtype=dtype, generator=generator).mul_(alpha / math.sqrt(dim))
    else:
        draw = torch.rand(dim, dim, dtype=dtype, generator=generator)
        target = draw.mul_(2).sub_(1).mul_(alpha * math.sqrt(3 / dim))
    target.diagonal().add_(beta)
    return target


def split(target: Float[Tensor, "D D"], rank: int) -> Factors:
    """Factor a target into L (D, rank) and R (rank, D), the best approximation L R of that rank.

    With U S Vᵀ = svd(target): L = U S^½ and R = S^½ Vᵀ, cut to the largest ``rank`` values, or padded with zeros
    where rank > D.
    """
    left, singular, right = truncated_svd(target, rank)
    root = singular.sqrt()
    left, right = left.mul_(root), right.mul_(root)
    if rank > len(root):
        padding = (0, rank - len(root))
        left, right = torch.nn.functional.pad(left, padding), torch.nn.functional.pad(right, padding)
    return left, right.mT


def split_identity(target: Float[Tensor, "D D"], rank: int, *, generator: torch.Generator) -> Factors:
    """Factor βI into √|β| B and ±√|β| Bᵀ with B (D, rank) drawn uniformly from the orthonormal ones.

    Of a multiple of the identity every projector of that rank is a best approximation, and an SVD would give all
    heads the first coordinates. A uniformly drawn one is what αZ + βI has for α → 0.
    """
    beta = target[0, 0].item()
    basis = random_orthogonal(target.shape[0], rank, generator=generator).to(target.dtype)
    root = math.sqrt(abs(beta))
    return root * basis, math.copysign(root, beta) * basis.mT


class Mimetic(Initializer):
    """W_q W_kᵀ ≈ αZ ± βI in every head, W_v W_o ≈ αZ ± βI in every layer, and sincos positions.

    The defaults are those of vision, + for the first and − for the second. The constants are those that circulate
    with the method; which pair the paper prints for which product is unconfirmed, and for language none is known.
    Biases, MLPs, norms and embeddings are left to the host or to what is composed before.

    Args:
        query_key: write the query–key part (required: a model without known attention is an error).
        qk_alpha: α of the query–key part; at 0 each head gets a random k-dimensional part of the identity.
        qk_beta: β of the query–key part.
        qk_sign: sign of the identity in the query–key part.
        value_output: write the value–output part.
        vo_alpha: α of the value–output part.
        vo_beta: β of the value–output part.
        vo_sign: sign of the identity in the value–output part; − for vision, + as reported for most language models.
        positions: ``"sincos"``, where the model has positions on a grid, or ``"keep"``.
        noise: distribution of Z, ``"normal"`` or ``"uniform"``.
        orientation: ``"paper"`` makes W_v W_o the target itself; ``"circulated"`` reproduces the missing transposes of
            the code in circulation, on which published baselines stand: there the product is Rᵀ-ordered, (R L)ᵀ.
        balance_heads: mix the value–output factors by a random orthogonal matrix, W_v O and Oᵀ W_o. The product is
            the same, and each head gets an equal share of it instead of the first taking the largest directions.
        residual_scale: where the host starts output projections 1/√(2·layers) smaller, for its depth (GPT-2):
            ``"replace"`` writes the target as it is, ``"keep"`` writes it so much smaller. The report says which.
        precision: of the draws and decompositions. ``"float32"`` takes half the time of ``"float64"``; its
            products on ViT-B are 6e-6 of their norm away from those of exact decompositions (benchmarks/init_time).
        where: which attention layers, by name.
        cross: write cross-attention as well, which the paper does not treat.

    Raises:
        StructuredInitError: at construction, a value out of range; at :meth:`plan`, no attention layer of a known
            class, or one whose products are not square.

    Grouped queries and RoPE, which the paper does not treat either, are ours: heads that share a key take their target
    on its span, which keeps as much of their targets together as k directions can; the value–output product has rank
    Hkv·k; and under RoPE the coordinates inside a head are turned at random, so that the largest directions do not all
    fall on the fastest pairs.

    Example:
        >>> import timm
        >>> model = timm.create_model("vit_tiny_patch16_224", depth=2, num_classes=10)
        >>> from structured_init import Mimetic, attention_sites, initialize
        >>> report = initialize(model, Mimetic(vo_beta=0.3), seed=0)
        >>> site = attention_sites(model)[0]
        >>> round((site.value @ site.output).sum(0).diagonal().mean().item(), 1)
        -0.3

    Source: Trockman & Kolter, 2305.09828; constants and orientation as circulated, see ``docs/mimetic.md``.
    """

    def __init__(
        self,
        query_key: bool = True,
        qk_alpha: float = 0.7,
        qk_beta: float = 0.7,
        qk_sign: Literal[1, -1] = 1,
        value_output: bool = True,
        vo_alpha: float = 0.4,
        vo_beta: float = 0.4,
        vo_sign: Literal[1, -1] = -1,
        positions: Literal["sincos", "keep"] = "sincos",
        noise: Noise = "normal",
        orientation: Orientation = "paper",
        balance_heads: bool = True,
        precision: Precision = "float64",
        where: Where = None,
        cross: bool = False,
        residual_scale: Literal["replace", "keep"] = "replace",
    ) -> None:
        for name, value, valid in (
            ("positions", positions, ("sincos", "keep")),
            ("noise", noise, ("normal", "uniform")),
            ("orientation", orientation, ("paper", "circulated")),
            ("precision", precision, ("float64", "float32")),
            ("residual_scale", residual_scale, ("replace", "keep")),
            ("qk_sign", qk_sign, (1, -1)),
            ("vo_sign", vo_sign, (1, -1)),
        ):
            if value not in valid:
                raise StructuredInitError(f"Mimetic: {name} must be {' or '.join(map(str, valid))}, got '{value}'")
        check_not_negative("Mimetic", qk_alpha=qk_alpha, vo_alpha=vo_alpha)
        check_finite("Mimetic", qk_beta=qk_beta, vo_beta=vo_beta)
        check_flag("Mimetic", query_key=query_key, value_output=value_output, balance_heads=balance_heads, cross=cross)
        if not query_key and not value_output and positions == "keep":
            raise StructuredInitError(
                "Mimetic: query_key and value_output are off and positions kept: there is nothing to write"
            )
        self.query_key = query_key
        self.qk_alpha = qk_alpha
        self.qk_beta = qk_beta
        self.qk_sign: Literal[1, -1] = qk_sign
        self.value_output = value_output
        self.vo_alpha = vo_alpha
        self.vo_beta = vo_beta
        self.vo_sign: Literal[1, -1] = vo_sign
        self.positions: Literal["sincos", "keep"] = positions
        self.noise: Noise = noise
        self.orientation: Orientation = orientation
        self.balance_heads = balance_heads
        self.precision: Precision = precision
        self.where = where
        self.cross = cross
        self.residual_scale: Literal["replace", "keep"] = residual_scale

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        for site in weights.each(required_attention_sites(weights, self.where, "Mimetic", cross=self.cross)):
            if self.query_key:
                self._query_key(site.by("Mimetic: query_key"), rng)
            if self.value_output:
                self._value_output(site.by("Mimetic: value_output"), rng)
        if self.positions == "sincos":
            self._positions(weights)

    def _query_key(self, site: AttentionSite, rng: Draws) -> None:
        """2305.09828, Algorithm: per head, U S Vᵀ = svd(αZ ± βI), W_q = U_k S_k^½, W_k = V_k S_k^½."""
        layout = site.layout
        _square(site, "query–key", layout.query.width, layout.key.width)
        group = site.num_heads // site.num_key_value_heads
        if self.qk_alpha:
            queries, keys = query_key_factors(
                lambda: self._query_key_targets(site, rng),
                site.num_heads,
                group,
                site.head_dim,
                lambda target: split(target, site.head_dim),
            )
        else:  # of one target for all heads, those that share a key have the same factors
            subspaces = rng.generator(site.name, "query_key subspace")
            target = next(self._query_key_targets(site, rng))
            parts = [
                split_identity(target, site.head_dim, generator=subspaces) for _ in range(site.num_key_value_heads)
            ]
            queries = [left for left, _ in parts for _ in range(group)]
            keys = [right.mT for _, right in parts]
        if layout.rope:
            generator = rng.generator(site.name, "rope")
            shape = (site.head_dim, site.head_dim)
            turns = [random_orthogonal(*shape, generator=generator).to(key.dtype) for key in keys]
            queries = [query @ turns[head // group] for head, query in enumerate(queries)]
            keys = [key @ turn for key, turn in zip(keys, turns, strict=True)]
        if group > 1 and not self.qk_alpha:
            site.note(f"qk_alpha 0: the {group} heads that share a key have the same queries")
        site.query = torch.stack(queries)
        del queries
        site.key = torch.stack(keys)
        site.note_query_key()

    def _value_output(self, site: AttentionSite, rng: Draws) -> None:
        """2305.09828, Algorithm: per layer, U S Vᵀ = svd(αZ ± βI), W_v = U S^½, W_o = S^½ Vᵀ."""
        layout = site.layout
        _square(site, "value–output", layout.value.width, layout.output.width)
        dim, heads, width = layout.value.width, layout.value.heads, layout.value.head_dim
        beta, subspace = self.vo_sign * self.vo_beta, rng.generator(site.name, "value_output subspace")
        left, right = self._split(
            self._target(self.vo_alpha, beta, rng.generator(site.name, "value_output"), dim),
            self.vo_alpha,
            heads * width,
            subspace,
        )
        if self.orientation == "circulated":
            left, right = self._untransposed(site, left, right)
        if self.residual_scale == "keep" and layout.residual_depth:
            right = right / math.sqrt(layout.residual_depth)
        if self.balance_heads:
            left, right = spread(left, right, generator=rng.generator(site.name, "balance_heads"))
        site.value = left.reshape(dim, heads, width).movedim(1, 0)
        group = layout.output.heads // heads  # heads that share a value share its output, each a part of it
        right = right.reshape(heads, width, dim)
        site.output = right if group == 1 else (right / group).repeat_interleave(group, dim=0)
        site.note_value_output(residual_scale=self.residual_scale)

    def _query_key_targets(self, site: AttentionSite, rng: Draws) -> Iterator[Tensor]:
        generator, beta = rng.generator(site.name, "query_key"), self.qk_sign * self.qk_beta
        for _ in range(site.num_heads):
            yield self._target(self.qk_alpha, beta, generator, site.embed_dim)

    def _target(self, alpha: float, beta: float, generator: torch.Generator, dim: int) -> Tensor:
        dtype = torch.float64 if self.precision == "float64" else torch.float32
        return noisy_identity(dim, alpha, beta, noise=self.noise, generator=generator, dtype=dtype)

    def _split(self, target: Tensor, alpha: float, rank: int, generator: torch.Generator) -> Factors:
        return split(target, rank) if alpha else split_identity(target, rank, generator=generator)

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

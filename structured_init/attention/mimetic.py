"""Mimetic initialization of self-attention: products that look like those of trained networks.

Letters: H heads, Hkv key–value heads, D embed_dim, k head_dim. Row vectors: q = x W_q.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from structured_init.attention.positions import NO_GRID, sincos_2d, two_dimensional
from structured_init.attention.products import Factors, Shared, all_keys, by_key, in_heads, square_width
from structured_init.attention.stream_share import scale_branches
from structured_init.hosts.attention import AttentionSite, attention_sites, required_attention_sites
from structured_init.hosts.positions import (
    NOT_IN_ORDER,
    enclosing,
    no_positions,
    sought_position_sites,
    token_layouts,
)
from structured_init.hosts.registry import Where
from structured_init.initializer import Initializer
from structured_init.util.arguments import check_choice, check_finite, check_not_negative, check_positive
from structured_init.util.draws import Draws
from structured_init.util.errors import StructuredInitError, shown
from structured_init.util.linalg import random_orthogonal, spread, truncated_svd
from structured_init.util.names import is_stack, within
from structured_init.weights import Weights

Noise = Literal["normal", "uniform"]
Orientation = Literal["paper", "circulated"]
Precision = Literal["float64", "float32"]
ValueScale = Literal["target", "stream"]
Sign = Literal[1, -1]


def noisy_identity(
    dim: int, alpha: float, beta: float, *, noise: Noise, generator: torch.Generator, dtype: torch.dtype = torch.float64
) -> Float[Tensor, "dim dim"]:
    """Return αZ + βI with Z_ij of mean 0 and variance 1/D (2305.09828, the targets of its algorithm).

    Z is N(0, 1/D) as the paper's restatements have it, or U(±√(3/D)) as the circulating code draws it; the same
    generator draws another Z in each dtype.
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

    With U S Vᵀ = svd(target): L = U S^½ and R = S^½ Vᵀ, cut to the largest ``rank`` values; beyond D zeros fill up.
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


@dataclass(eq=False, repr=False)
class Mimetic(Initializer):
    """W_q W_kᵀ ≈ αZ ± βI in every head, W_v W_o ≈ αZ ± βI in every layer, and sincos positions.

    The defaults are those of vision, + for the first and − for the second. The constants are those that circulate
    with the method; which pair the paper prints for which product is unconfirmed, and for language none is known.
    Biases, MLPs, norms and embeddings are left to the host or to what is composed before.

    Args:
        query_key: write the query–key part (required: a model without known attention is an error); ``"later"`` in all
            layers but the first of each list of layers, or of a model without lists.
        qk_alpha: α of the query–key part; at 0 each key gets a random k-dimensional part of the identity, and heads
            that share it have the same queries.
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
        value_scale: ``"target"`` writes the value–output target as it is; ``"stream"`` so large that what each layer
            puts out is ``stream_share`` times the stream that it is added to. Of GPT-2's embeddings the target is 16
            times as large. It is measured in a forward pass: on the batch given to ``initialize``, or on what the host
            library offers; where there is neither it is computed from the embeddings.
        stream_share: root mean square of what a layer puts out, before any norm, gate or LayerScale behind it, over
            that of the stream, with ``value_scale: stream``.
        precision: of the draws and decompositions. ``"float32"`` takes half the time of ``"float64"``; its
            products on ViT-B are 6e-6 of their norm away from those of exact decompositions (benchmarks/init_time).
        where: which attention layers, by shell pattern; of positions those of their towers.
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

    query_key: bool | Literal["later"] = True
    qk_alpha: float = 0.7
    qk_beta: float = 0.7
    qk_sign: Sign = 1
    value_output: bool = True
    vo_alpha: float = 0.4
    vo_beta: float = 0.4
    vo_sign: Sign = -1
    positions: Literal["sincos", "keep"] = "sincos"
    noise: Noise = "normal"
    orientation: Orientation = "paper"
    balance_heads: bool = True
    precision: Precision = "float64"
    where: Where = None
    cross: bool = False
    value_scale: ValueScale = "target"
    stream_share: float = 0.3

    def __post_init__(self) -> None:
        check_choice("Mimetic", positions=(self.positions, Literal["sincos", "keep"]), noise=(self.noise, Noise))
        check_choice("Mimetic", query_key=(self.query_key, Literal[True, False, "later"]))
        check_choice("Mimetic", orientation=(self.orientation, Orientation), precision=(self.precision, Precision))
        check_choice("Mimetic", value_scale=(self.value_scale, ValueScale))
        check_choice("Mimetic", qk_sign=(self.qk_sign, Sign), vo_sign=(self.vo_sign, Sign))
        check_not_negative("Mimetic", qk_alpha=self.qk_alpha, vo_alpha=self.vo_alpha)
        check_finite("Mimetic", qk_beta=self.qk_beta, vo_beta=self.vo_beta)
        check_positive("Mimetic", stream_share=self.stream_share)
        if self.value_scale == "stream" and not self.value_output:
            raise StructuredInitError("Mimetic: value_scale 'stream' has nothing to scale: value_output is off")

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        sites = required_attention_sites(weights, self.where, "Mimetic", cross=self.cross)
        first: dict[str | None, str] = {}  # list of layers → the one whose queries and keys stay
        if self.query_key == "later":
            for site in attention_sites(weights):
                first.setdefault(*_layer(site, weights))
        for site in weights.each(sites):
            layers, layer = _layer(site, weights)
            if self.query_key and first.get(layers) != layer:
                self._write_query_key(site, rng)
            if self.value_output:
                self._write_value_output(site, rng)
        if self.positions == "sincos":
            self._positions(weights, sites)
        if self.value_scale == "stream":
            scale_branches(weights, [site.by("Mimetic: value_output") for site in sites], self.stream_share)

    def _write_query_key(self, site: AttentionSite, rng: Draws) -> None:
        turns = rng.generator(site.name, "rope") if site.layout.rope else None
        if site.by("Mimetic: query_key").write_query_key(*all_keys(self._query_key(site, rng), site.layout, turns)):
            site.note_query_key()

    def _write_value_output(self, site: AttentionSite, rng: Draws) -> None:
        if site.by("Mimetic: value_output").write_value_output(*in_heads(*self._value_output(site, rng), site.layout)):
            site.note_value_output()

    def _query_key(self, site: AttentionSite, rng: Draws) -> Iterator[Shared]:
        """2305.09828, Algorithm: per head, U S Vᵀ = svd(αZ ± βI), W_q = U_k S_k^½, W_k = V_k S_k^½."""
        layout, generator = site.layout, rng.generator(site.name, "query_key")
        dim = square_width(site, "query–key", layout.query.width, layout.key.width)
        draw = partial(self._target, self.qk_alpha, self.qk_sign * self.qk_beta, dim)
        if self.qk_alpha:
            yield from by_key(site, draw, generator, partial(split, rank=site.head_dim))
            return
        # Of one target for all heads, those that share a key have the same factors.
        target, subspaces = draw(generator), rng.generator(site.name, "query_key subspace")
        for _ in range(site.num_key_value_heads):
            left, right = split_identity(target, site.head_dim, generator=subspaces)
            yield left.expand(site.num_heads // site.num_key_value_heads, -1, -1), right.mT

    def _value_output(self, site: AttentionSite, rng: Draws) -> Factors:
        """2305.09828, Algorithm: per layer, U S Vᵀ = svd(αZ ± βI), W_v = U S^½, W_o = S^½ Vᵀ."""
        layout, generator = site.layout, rng.generator(site.name, "value_output")
        dim = square_width(site, "value–output", layout.value.width, layout.output.width)
        rank = layout.value.heads * layout.value.head_dim
        draw = partial(self._target, self.vo_alpha, self.vo_sign * self.vo_beta, dim)
        if self.vo_alpha:  # no name here holds the target while it is split
            left, right = split(draw(generator), rank)
        else:
            subspace = rng.generator(site.name, "value_output subspace")
            left, right = split_identity(draw(generator), rank, generator=subspace)
        if self.orientation == "circulated":
            if rank != dim:
                raise StructuredInitError(
                    f"Mimetic: orientation 'circulated' needs heads × head_dim = embed_dim, which '{site.name}' has not"
                )
            left, right = left.mT, right.mT
        if self.balance_heads:
            left, right = spread(left, right, generator=rng.generator(site.name, "balance_heads"))
        return left, right

    def _target(self, alpha: float, beta: float, dim: int, generator: torch.Generator) -> Tensor:
        return noisy_identity(dim, alpha, beta, noise=self.noise, generator=generator, dtype=self._dtype)

    @property
    def _dtype(self) -> torch.dtype:
        return torch.float64 if self.precision == "float64" else torch.float32

    def _positions(self, weights: Weights, attention: list[AttentionSite]) -> None:
        """Optional part: a model without positions on a grid is reported, not refused.

        Under ``where``, positions of other towers are left alone: those that stand around layers, none of them chosen.
        """
        sites = sought_position_sites(weights)
        if not sites and NOT_IN_ORDER not in weights.skipped.values():
            weights.skip("positions", no_positions(weights))
        layouts = token_layouts(weights)
        around: dict[int, set[str]] = {}
        for each in attention_sites(weights):
            if (layout := enclosing(layouts, each.name)) is not None:
                around.setdefault(id(layout.positions), set()).add(each.name)
        chosen = {site.name for site in attention}
        for site in weights.each(sites):
            if self.where is not None and around.get(id(site.tensor), chosen).isdisjoint(chosen):
                weights.skip(site.name, f"not the positions of what where={shown(self.where)} selects")
            elif site.grid is None:
                weights.skip(site.name, f"{NO_GRID.format('sincos')}; positions='keep' leaves those of a sequence")
            else:
                site.write(sincos_2d(two_dimensional(site), site.embed_dim), "Mimetic: positions")


def _layer(site: AttentionSite, weights: Weights) -> tuple[str | None, str]:
    """Return the outermost list of layers around attention, and where in it; attention in none is a layer by itself."""
    lists = (name for name, module in weights.modules.items() if within(site.name, name) and is_stack(module))
    if (outer := next(lists, None)) is None:
        return None, site.name
    return outer, site.name.removeprefix(outer).strip(".").partition(".")[0]

"""Positions alone: the control for every query–key initialization, since positions give much of the published gain.

A new kind is a pure function here, beside sines and cosines in two published forms and smooth row and column codes, and
a line of :meth:`Positions.value`.

Letters: N tokens of a grid (Gy, Gx), D embed_dim.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from structured_init.hosts.positions import (
    PositionSite,
    required_position_sites,
    sought_position_sites,
)
from structured_init.hosts.registry import Where
from structured_init.initializer import Initializer
from structured_init.util.arguments import check_choice, check_not_negative, check_positive
from structured_init.util.draws import Draws
from structured_init.util.errors import StructuredInitError
from structured_init.util.linalg import random_orthogonal
from structured_init.weights import Weights

Form = Literal["timm", "simplevit"]
Kind = Literal["sincos", "gaussian", "codes"]
STD = 0.02  # of timm's positions
NO_GRID = (
    "no grid of image patches is known for {} positions: give a batch of images, or the grid with"
    " structured_init.register_positions"
)


def sincos_2d(
    grid: tuple[int, int], embed_dim: int, *, form: Form = "timm", temperature: float = 10000.0
) -> Float64[Tensor, "tokens embed_dim"]:
    """Two-dimensional sines and cosines of the integer grid coordinates, amplitude 1, rows first: (N, D).

    With m = D/4 bands, timm's frequencies are T^(−i/m) and its layout [sin y, sin x, cos y, cos x]; SimpleViT's are
    T^(−i/(m−1)) and [sin x, cos x, sin y, cos y]. D that is no multiple of 4 is an error.

    Source: ``timm/layers/pos_embed_sincos.py::build_sincos2d_pos_embed``; Beyer et al. 2022 (2205.01580).
    """
    if embed_dim % 4:
        raise StructuredInitError(f"sincos positions need an embed_dim that is a multiple of 4, got {embed_dim}")
    bands = embed_dim // 4
    exponent = torch.arange(bands, dtype=torch.float64) / (bands if form == "timm" else max(bands - 1, 1))
    frequency = temperature**-exponent
    axes = torch.meshgrid(*(torch.arange(size, dtype=torch.float64) for size in grid), indexing="ij")
    y, x = (coordinate.reshape(-1, 1) * frequency for coordinate in axes)
    parts = [y.sin(), x.sin(), y.cos(), x.cos()] if form == "timm" else [x.sin(), x.cos(), y.sin(), y.cos()]
    return torch.cat(parts, dim=1)


def row_and_column_codes(
    grid: tuple[int, int], embed_dim: int, *, kappa: float | None, gain: float, generator: torch.Generator
) -> Float64[Tensor, "tokens embed_dim"]:
    """A row code plus a column code, each smooth to the degree that κ says, of rms ``gain``, rows first: (N, D).

    Each axis has an orthonormal cosine basis over its G coordinates with amplitudes a_k = 1/(1 + k/κ), a_0 = 0,
    embedded by a random orthonormal map; the two maps are orthogonal to each other, so D ≥ Gy + Gx − 2 is needed. κ → ∞
    (``None``) makes codes of different rows unrelated but for the missing mean; κ = 2 keeps neighbours similar.
    """
    rows, columns = grid
    rank = rows + columns - 2
    if rank < 1 or embed_dim < rank:
        raise StructuredInitError(
            f"row and column codes of a {rows}×{columns} grid need 1 ≤ rows+columns−2 ≤ embed_dim, got {rank}"
            f" and {embed_dim}"
        )
    embedding = random_orthogonal(rank, embed_dim, generator=generator)
    row = axis_code(rows, kappa) @ embedding[: rows - 1]
    column = axis_code(columns, kappa) @ embedding[rows - 1 :]
    positions = (row[:, None, :] + column[None, :, :]).reshape(rows * columns, embed_dim)
    return positions * (gain / positions.square().mean().sqrt())


def axis_code(size: int, kappa: float | None) -> Float64[Tensor, "size modes"]:
    """The orthonormal DCT-II basis of one axis without its constant, mode k scaled by 1/(1 + k/κ): (G, G − 1)."""
    mode = torch.arange(1, size, dtype=torch.float64)
    coordinate = torch.arange(size, dtype=torch.float64)[:, None] + 0.5
    basis = math.sqrt(2 / size) * torch.cos(math.pi / size * coordinate * mode)
    return basis if kappa is None else basis / (1 + mode / kappa)


@dataclass(eq=False, repr=False)
class Positions(Initializer):
    """Set the positions and nothing else.

    Args:
        kind: ``"sincos"``; ``"gaussian"``, N(0, (0.02·gain)²), with timm's 0.02; or ``"codes"``, row and column codes
            of rms ``gain``.
        form: for sincos, ``"timm"`` or ``"simplevit"`` frequencies and layout.
        gain: factor on the result (sincos, Gaussian) or its root mean square (codes); 0 leaves no positions.
        kappa: for codes, how smooth: 2 keeps neighbours similar, ``None`` makes rows unrelated.
        trainable: freeze (``False``) or train (``True``) them; ``None`` leaves that to the host.
        where: which position embeddings, by shell pattern.

    Raises:
        StructuredInitError: at construction, a value out of range; at :meth:`plan`, the model has no positions of a
            known class.

    Example:
        >>> import timm
        >>> model = timm.create_model("vit_tiny_patch16_224", depth=2, num_classes=10)
        >>> from structured_init import Positions, initialize, position_sites
        >>> report = initialize(model, Positions("sincos", gain=2.0), seed=0)
        >>> round(position_sites(model)[0].value.square().mean().item(), 2)  # half of the squared amplitude
        2.0

    Source: sincos as in timm and SimpleViT (2205.01580); the Gaussian with gain 18 from 2505.19985; codes are ours.
    """

    kind: Kind = "sincos"
    form: Form = "timm"
    gain: float = 1.0
    kappa: float | None = None
    trainable: bool | None = None
    where: Where = None

    def __post_init__(self) -> None:
        check_choice("Positions", kind=(self.kind, Kind), form=(self.form, Form))
        check_positive("Positions", null=True, kappa=self.kappa)
        check_not_negative("Positions", gain=self.gain)

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        sites = required_position_sites(weights, self.where, "Positions")
        for site in weights.each(sites):
            if self._left(site, sites):
                weights.skip(site.name, NO_GRID.format(self.kind))
            else:
                site.write(self.value(site, rng), f"Positions: {self.kind}")

    def freezing(self, weights: Weights) -> Iterable[tuple[Tensor, bool]]:
        if self.trainable is None:
            return
        sites = sought_position_sites(weights, self.where)
        if not sites and next(weights.model.parameters(), None) is not None:
            weights.warn(
                f"Positions: trainable={self.trainable} finds no positions: where only a forward pass shows the table,"
                " set its requires_grad yourself"
            )
        for site in sites:
            if isinstance(site.tensor, torch.nn.Parameter) and not self._left(site, sites):
                yield site.tensor, self.trainable

    def _left(self, site: PositionSite, sites: list[PositionSite]) -> bool:
        """Say whether these are positions of a text beside those of images, which alone can hold this kind."""
        return self.kind != "gaussian" and site.grid is None and any(each.grid is not None for each in sites)

    def value(self, site: PositionSite, rng: Draws) -> Tensor:
        """Return the positions for one site, (N, D) in float64."""
        generator = rng.generator(site.name, f"positions {self.kind}")
        if self.kind == "gaussian":
            shape = (site.num_tokens, site.embed_dim)
            return self.gain * STD * torch.randn(shape, dtype=torch.float64, generator=generator)
        grid = two_dimensional(site)
        if self.kind == "sincos":
            return self.gain * sincos_2d(grid, site.embed_dim, form=self.form)
        return row_and_column_codes(grid, site.embed_dim, kappa=self.kappa, gain=self.gain, generator=generator)


def two_dimensional(site: PositionSite) -> tuple[int, int]:
    """Return the site's grid, or raise one line where it has none or it does not match the positions."""
    if site.grid is None:
        raise StructuredInitError(
            f"'{site.name}' holds positions of a sequence, which has no rows and columns: sincos and codes are for "
            "networks of images; Positions(kind='gaussian') takes both. Where these are images, say their grid with "
            "structured_init.register_positions"
        )
    if site.behind:
        raise StructuredInitError(
            f"'{site.name}' has rows for tokens behind the patches, which are not supported: put them before these"
        )
    rows, columns = site.grid
    if rows * columns != site.num_tokens:
        more = site.num_tokens - rows * columns
        remedy = f": if its first {more} belong to class tokens, its TokenLayout takes first={more}" if more > 0 else ""
        raise StructuredInitError(
            f"'{site.name}' holds {site.num_tokens} grid positions, which a {rows}×{columns} grid does not "
            f"match{remedy}"
        )
    return site.grid

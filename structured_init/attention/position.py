"""Positions alone: the control for every query–key initialization, since positions give much of the published gain."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from structured_init.arguments import check_flag, check_not_negative, check_positive
from structured_init.attention.codes import Form, row_and_column_codes, sincos_2d
from structured_init.draws import Draws
from structured_init.errors import StructuredInitError
from structured_init.initializer import Initializer
from structured_init.plan import Weights
from structured_init.sites.position import PositionSite, position_sites, required_position_sites
from structured_init.sites.select import Where


class Positions(Initializer):
    """Set the positions and nothing else.

    Args:
        kind: ``"sincos"``; ``"gaussian"``, N(0, (gain·std)²); or ``"codes"``, row and column codes of rms ``gain``.
        form: for sincos, ``"timm"`` or ``"simplevit"`` frequencies and layout.
        temperature: for sincos; positive.
        gain: factor on the result (sincos, Gaussian) or its root mean square (codes); 0 leaves no positions.
        std: for Gaussian, positive; timm's is 0.02.
        kappa: for codes, how smooth: 2 keeps neighbours similar, ``None`` makes rows unrelated.
        trainable: freeze (``False``) or train (``True``) them; ``None`` leaves that to the host.
        where: which position embeddings, by name.

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

    def __init__(
        self,
        kind: Literal["sincos", "gaussian", "codes"] = "sincos",
        form: Form = "timm",
        temperature: float = 10000.0,
        gain: float = 1.0,
        std: float = 0.02,
        kappa: float | None = None,
        trainable: bool | None = None,
        where: Where = None,
    ) -> None:
        if kind not in ("sincos", "gaussian", "codes"):
            raise StructuredInitError(f"Positions: kind must be sincos, gaussian or codes, got '{kind}'")
        if form not in ("timm", "simplevit"):
            raise StructuredInitError(f"Positions: form must be timm or simplevit, got '{form}'")
        check_positive("Positions", temperature=temperature, std=std)
        check_positive("Positions", null=True, kappa=kappa)
        check_not_negative("Positions", gain=gain)
        check_flag("Positions", null=True, trainable=trainable)
        self.kind: Literal["sincos", "gaussian", "codes"] = kind
        self.form: Form = form
        self.temperature = temperature
        self.gain = gain
        self.std = std
        self.kappa = kappa
        self.trainable = trainable
        self.where = where

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        for site in weights.each(required_position_sites(weights, self.where, "Positions")):
            site.write(self.value(site, rng), f"Positions: {self.kind}")

    def freezing(self, weights: Weights) -> Iterable[tuple[Tensor, bool]]:
        if self.trainable is None:
            return
        for site in position_sites(weights, self.where):
            if isinstance(site.tensor, torch.nn.Parameter):
                yield site.tensor, self.trainable

    def value(self, site: PositionSite, rng: Draws) -> Tensor:
        """Return the positions for one site, (N, D) in float64."""
        generator = rng.generator(site.name, f"positions {self.kind}")
        if self.kind == "gaussian":
            shape = (site.num_tokens, site.embed_dim)
            return self.gain * self.std * torch.randn(shape, dtype=torch.float64, generator=generator)
        grid = two_dimensional(site)
        if self.kind == "sincos":
            return self.gain * sincos_2d(grid, site.embed_dim, form=self.form, temperature=self.temperature)
        return row_and_column_codes(grid, site.embed_dim, kappa=self.kappa, gain=self.gain, generator=generator)


def two_dimensional(site: PositionSite) -> tuple[int, int]:
    """Return the site's grid, or raise one line where it has none or it does not match the positions."""
    if site.grid is None:
        raise StructuredInitError(f"'{site.name}' is a sequence without a grid; sincos and codes need rows and columns")
    rows, columns = site.grid
    if rows * columns != site.num_tokens:
        more = site.num_tokens - rows * columns
        remedy = f": if its first {more} belong to class tokens, its TokenLayout takes first={more}" if more > 0 else ""
        raise StructuredInitError(
            f"'{site.name}' holds {site.num_tokens} grid positions, which a {rows}×{columns} grid does not "
            f"match{remedy}"
        )
    return site.grid

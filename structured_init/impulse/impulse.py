"""Impulse: attention starts as a convolution with one impulse per head; SparePositions: what keeps its positions.

Letters: H heads, f kernel_size, D embed_dim, r rank of the positions. An offset (m, n) leads m rows down, n columns
right.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from structured_init.attention.positions import two_dimensional
from structured_init.hosts.attention import AttentionSite, attention_sites, required_attention_sites
from structured_init.hosts.attention_positions import positions_elsewhere
from structured_init.hosts.positions import enclosing, no_positions, position_sites, token_layouts
from structured_init.hosts.registry import Where
from structured_init.impulse.adam import AdamSolver
from structured_init.impulse.separable import CUTOFF, SeparableSolver
from structured_init.impulse.solver import (
    Basis,
    Border,
    GridPositions,
    ImpulseSolver,
    Order,
    Task,
)
from structured_init.impulse.svd import SvdSolver
from structured_init.initializer import Initializer
from structured_init.util.arguments import check_choice, check_whole
from structured_init.util.draws import Draws
from structured_init.util.errors import StructuredInitError
from structured_init.weights import Weights

SOLVERS: dict[str, type[ImpulseSolver]] = {"adam": AdamSolver, "svd": SvdSolver, "separable": SeparableSolver}
SHARED = "Impulse"  # the name under which a shared solution draws
# 2505.19985 (code): centre, up, right, left, down, then the corners; numbers count a 3×3 kernel row by row.
FIXED_ORDER = (4, 1, 5, 3, 7, 0, 2, 6, 8)


def draw_offsets(order: Order, heads: int, kernel_size: int, *, generator: torch.Generator) -> Int[Tensor, "heads 2"]:
    """Choose one offset of an f × f kernel, f odd, for each of H heads.

    ``"random"``, independently and with replacement (2401.12511, 2404.01139); ``"fixed"``, the order of 2505.19985,
    head h takes entry h mod 9 of a 3×3 kernel.
    """
    if order == "random":
        index = torch.randint(0, kernel_size**2, (heads,), generator=generator)
    elif kernel_size == 3:
        index = torch.tensor(FIXED_ORDER)[torch.arange(heads) % len(FIXED_ORDER)]
    else:
        raise StructuredInitError(
            f"Impulse: the fixed order is only for a 3×3 kernel, got kernel_size {kernel_size}: use random offsets"
        )
    return torch.stack([index // kernel_size, index % kernel_size], dim=1) - kernel_size // 2


@dataclass(eq=False, repr=False)
class Impulse(Initializer):
    """Queries and keys for which attention is a convolution: each head looks at the token at its own offset.

    It writes the query–key part and positions. Values are left to the host or to what is composed, such as
    ``Mimetic(query_key=False, positions="keep")``; biases are not touched.

    Args:
        kernel_size: f, odd: the offsets are those of an f × f kernel; 3 or 5 as published.
        solver: ``"adam"`` (2404.01139), ``"svd"`` (2505.19985) or ``"separable"`` (ours) with its default constants;
            or an ``AdamSolver``, ``SvdSolver`` or ``SeparableSolver`` with others.
        offsets: ``"random"`` or ``"fixed"``, see :func:`draw_offsets`; ``None``: as the solver's
            source has it, fixed for svd and random otherwise.
        border: of a target outside the grid, ``"zero"`` or ``"clamp"``, see :func:`axis_shift`; ``None``: clamp for
            separable, zero otherwise.
        shared: one solution for all layers of one shape; ``None``: for adam only.
        positions: ``"own"`` writes those for which the solver's source solves, ``"keep"`` solves for the present ones:
            the host's, or those that ``Positions`` composed before has written.
        where: which attention layers, by shell pattern.

    Raises:
        StructuredInitError: at :meth:`plan`, no known attention layer; no grid or positions, or positions that do not
            match the grid; a kernel larger than the grid; or a class token with adam.

    Grouped queries, which the papers do not treat, are ours: heads that share a key keep offsets of their own. With svd
    they lose nothing; with separable nothing where k ≥ Gy + Gx − 2; adam optimizes the shared key.

    Example:
        >>> import timm
        >>> model = timm.create_model("vit_tiny_patch16_224", depth=2, num_classes=10)
        >>> from structured_init import Impulse, initialize
        >>> report = initialize(model, Impulse(kernel_size=3, solver="separable"), seed=0)
        >>> [entry.names[0] for entry in report.changed]
        ['pos_embed', 'blocks.0.attn.qkv.weight', 'blocks.1.attn.qkv.weight']
    """

    kernel_size: int = 3
    solver: Literal["adam", "svd", "separable"] | ImpulseSolver = "svd"
    offsets: Order | None = None
    border: Border | None = None
    shared: bool | None = None
    positions: Literal["own", "keep"] = "own"
    where: Where = None

    def __post_init__(self) -> None:
        check_whole("Impulse", kernel_size=self.kernel_size)
        if self.kernel_size % 2 == 0:
            raise StructuredInitError(f"Impulse: kernel_size must be odd, such as 3 or 5, got {self.kernel_size}")
        if not isinstance(self.solver, ImpulseSolver) and self.solver not in SOLVERS:
            raise StructuredInitError(f"Impulse: solver must be {', '.join(SOLVERS)} or a solver, got {self.solver!r}")
        check_choice("Impulse", positions=(self.positions, Literal["own", "keep"]))
        check_choice(
            "Impulse", offsets=(self.offsets, Literal[Order, None]), border=(self.border, Literal[Border, None])
        )

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        sites = required_attention_sites(weights, self.where, "Impulse")
        positions = find_positions(attention_sites(weights), weights)
        for site in sites:
            check(site, positions[site.name], self.kernel_size, weights)
        if self.positions == "own":
            self._positions(weights, dict.fromkeys(positions[site.name] for site in sites), rng)
        solved: dict[tuple, tuple[Tensor, Tensor]] = {}
        for site in weights.each(sites):
            name = self._name(site)
            task = Task(
                site=site,
                positions=positions[site.name],
                offsets=self.head_offsets(site, rng),
                border=self.border or self._solver.border,
                draw=lambda part, name=name: rng.generator(name, f"Impulse: {part}"),
                weights=weights,
                batch=batch,
            )
            if not self._shares:
                solved.clear()
            if (shape := self._shape(task)) not in solved:
                solved[shape] = self._solver.solve(task)
            if site.by("Impulse: query_key").write_query_key(*solved[shape]):
                site.note_query_key()
                if task.positions is None:
                    weights.warn(
                        f"'{site.name}': it has no known positions, by which heads could find their impulse in images"
                    )

    @property
    def needs_batch(self) -> bool:
        return self._solver.needs_batch

    def head_offsets(self, site: AttentionSite, rng: Draws) -> Int[Tensor, "heads 2"]:
        """Return (rows, columns) from query to target of each head of a layer: what :meth:`plan` asks for there."""
        order = self.offsets or self._solver.offsets
        generator = rng.generator(self._name(site), "Impulse: offsets")
        return draw_offsets(order, site.num_heads, self.kernel_size, generator=generator)

    @property
    def _solver(self) -> ImpulseSolver:
        return SOLVERS[self.solver]() if isinstance(self.solver, str) else self.solver

    @property
    def _shares(self) -> bool:
        return self._solver.shared if self.shared is None else self.shared

    def _name(self, site: AttentionSite) -> str:
        """Return the name of a layer's draws. A shared solution's is the same whichever layer comes first."""
        return SHARED if self._shares else site.name

    def _shape(self, task: Task) -> tuple:
        """Return what layers must have in common to share a solution."""
        site = task.site
        sizes = (site.num_heads, site.num_key_value_heads, site.head_dim, site.embed_dim, site.scale, task.grid)
        return (*sizes, id(task.positions))

    def _positions(self, weights: Weights, towers: Iterable[GridPositions | None], rng: Draws) -> None:
        """Optional part: a tower without positions is reported here, and refused by the solvers that need them."""
        for positions in weights.each(towers):
            if positions is None:
                weights.skip("positions", no_positions(weights))
            else:
                value = self._solver.own_positions().value(positions.site, rng)
                positions.site.write(value, "Impulse: positions")


def check(site: AttentionSite, positions: GridPositions | None, kernel_size: int, weights: Weights) -> None:
    """Raise one line where a layer cannot hold an impulse initialization, whatever the solver."""
    if site.grid is None:
        elsewhere = positions_elsewhere(site, weights) or (
            "of patches, say the grid with structured_init.register_positions; else, leave it out with where="
        )
        raise StructuredInitError(
            f"Impulse: '{site.name}' sees tokens whose rows and columns are not known: {elsewhere}"
        )
    rows, columns = site.grid
    if positions is not None and two_dimensional(positions.site) != (rows, columns):
        raise StructuredInitError(
            f"Impulse: the {rows}×{columns} grid of '{site.name}' does not match the positions"
            f" '{positions.site.name}' on {'×'.join(map(str, two_dimensional(positions.site)))}"
        )
    if kernel_size > min(rows, columns):
        raise StructuredInitError(
            f"Impulse: a {kernel_size}×{kernel_size} kernel is larger than the {rows}×{columns} grid of '{site.name}';"
            " on a sequence, PreviousToken(offsets=…) looks at neighbours"
        )


def find_positions(sites: list[AttentionSite], weights: Weights) -> dict[str, GridPositions | None]:
    """Return, by the name of each attention layer, the positions of the innermost module around it that is known."""
    layouts = token_layouts(weights)
    known = {id(site.tensor): GridPositions(site) for site in position_sites(weights)}
    around = {site.name: enclosing(layouts, site.name) for site in sites}
    return {name: None if layout is None else known.get(id(layout.positions)) for name, layout in around.items()}


class SparePositions(Initializer):
    """Take the span of the positions out of what values read and outputs write, after a value–output part.

    Mimetic values subtract from a token part of what it looks at, its position included, so that after a few layers
    positions are gone and with them every map that is built on them. With W_v ← (I − VVᵀ) W_v and W_o ← W_o (I − VVᵀ),
    V an orthonormal basis of the positions, attention neither moves nor overwrites them. MLPs still do.

    Args:
        read: change the values.
        write: change the outputs.
        where: which attention layers, by shell pattern.

    Raises:
        StructuredInitError: at :meth:`plan`, no known attention layer, no positions, or positions that leave no
            direction free.

    Source: ours; measurements in ``docs/impulse.md``.
    """

    def __init__(self, read: bool = True, write: bool = True, where: Where = None) -> None:
        self.read, self.write, self.where = read, write, where

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        sites = required_attention_sites(weights, self.where, "SparePositions")
        positions = find_positions(sites, weights)
        for site in weights.each(sites):
            known = positions[site.name]
            if known is None:
                raise StructuredInitError(
                    f"SparePositions: no position embedding was recognized in the model of '{site.name}'"
                )
            centred = known.value - known.value.mean(dim=0)
            span = Basis.of(centred).cut(cutoff=CUTOFF).right  # of the directions in which positions differ, (D, r)
            if span.shape[1] >= site.embed_dim:
                raise StructuredInitError(
                    f"SparePositions: '{known.site.name}' takes all {site.embed_dim} directions: use positions of"
                    " smaller rank, such as row and column codes"
                )
            site = site.by("SparePositions")
            if self.read:
                value = site.value.double()
                site.value = value - span @ (span.mT @ value)
            if self.write:
                output = site.output.double()
                site.output = output - (output @ span) @ span.mT

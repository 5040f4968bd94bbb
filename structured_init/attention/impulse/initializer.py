"""Impulse: attention starts as a convolution with one impulse per head."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from jaxtyping import Int
from torch import Tensor

from structured_init.arguments import check_flag, check_whole
from structured_init.attention.impulse.offsets import Border, Order, draw_offsets
from structured_init.attention.impulse.solvers import SOLVERS, ImpulseSolver
from structured_init.attention.impulse.task import GridPositions, Task, check, find_positions
from structured_init.draws import Draws
from structured_init.errors import StructuredInitError, nearest
from structured_init.initializer import Initializer
from structured_init.plan import Weights
from structured_init.sites.attention import AttentionSite, attention_sites, required_attention_sites
from structured_init.sites.position import NO_POSITIONS
from structured_init.sites.select import Where

SHARED = "Impulse"  # the name under which a shared solution draws


class Impulse(Initializer):
    """Queries and keys for which attention is a convolution: each head looks at the token at its own offset.

    It writes the query–key part and positions. Values are left to the host or to what is composed, such as
    ``Mimetic(query_key=False, positions="keep")``; biases are not touched.

    Args:
        kernel_size: f, odd: the offsets are those of an f × f kernel; 3 or 5 as published.
        solver: ``"adam"`` (2404.01139), ``"svd"`` (2505.19985) or ``"separable"`` (ours) with its default constants;
            or an ``AdamSolver``, ``SvdSolver`` or ``SeparableSolver`` with others.
        offsets: ``"random"``, ``"fixed"`` or ``"covering"``, see :func:`draw_offsets`; ``None``: as the solver's source
            has it, fixed for svd and random otherwise.
        border: of a target outside the grid, ``"zero"`` or ``"clamp"``, see :func:`axis_shift`; ``None``: clamp for
            separable, zero otherwise.
        shared: one solution for all layers of one shape; ``None``: for adam only.
        positions: ``"own"`` writes those for which the solver's source solves, ``"keep"`` solves for the present ones:
            the host's, or those that ``Positions`` composed before has written.
        where: which attention layers, by name.

    Raises:
        StructuredInitError: at :meth:`plan`, no known attention layer; no grid or positions, or positions that do not
            match the grid; a kernel larger than the grid; more offsets asked than heads; or a class token with adam.

    Grouped queries, which the papers do not treat, are ours: heads that share a key keep offsets of their own. With svd
    they lose nothing; with separable nothing where k ≥ Gy + Gx − 2, else the report says how much; adam optimizes the
    shared key.

    Example:
        >>> import timm
        >>> model = timm.create_model("vit_tiny_patch16_224", depth=2, num_classes=10)
        >>> from structured_init import Impulse, initialize
        >>> report = initialize(model, Impulse(kernel_size=3, solver="separable"), seed=0)
        >>> [entry.names[0] for entry in report.changed]
        ['pos_embed', 'blocks.0.attn.qkv.weight', 'blocks.1.attn.qkv.weight']
    """

    def __init__(
        self,
        kernel_size: int = 3,
        solver: Literal["adam", "svd", "separable"] | ImpulseSolver = "svd",
        offsets: Order | None = None,
        border: Border | None = None,
        shared: bool | None = None,
        positions: Literal["own", "keep"] = "own",
        where: Where = None,
    ) -> None:
        check_whole("Impulse", kernel_size=kernel_size)
        check_flag("Impulse", null=True, shared=shared)
        if kernel_size % 2 == 0:
            raise StructuredInitError(f"Impulse: kernel_size must be odd, such as 3 or 5, got {kernel_size}")
        if isinstance(solver, str) and solver not in SOLVERS:
            raise StructuredInitError(f"Impulse: unknown solver '{solver}': {nearest(solver, SOLVERS)}")
        if not isinstance(solver, str | ImpulseSolver):
            raise StructuredInitError(f"Impulse: solver must be {', '.join(SOLVERS)} or a solver, got {solver!r}")
        for name, value, valid in (
            ("offsets", offsets, ("random", "fixed", "covering", None)),
            ("border", border, ("zero", "clamp", None)),
            ("positions", positions, ("own", "keep")),
        ):
            if value not in valid:
                choices = " or ".join(str(choice) for choice in valid if choice is not None)
                raise StructuredInitError(f"Impulse: {name} must be {choices}, got '{value}'")
        self.kernel_size = kernel_size
        self.solver: Literal["adam", "svd", "separable"] | ImpulseSolver = solver
        self.offsets: Order | None = offsets
        self.border: Border | None = border
        self.shared = shared
        self.positions: Literal["own", "keep"] = positions
        self.where = where

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        sites = required_attention_sites(weights, self.where, "Impulse")
        positions = find_positions(attention_sites(weights), weights)
        first = {place: name for name, place in reversed(positions.items())}.values()
        for site in sites:
            check(site, positions[site.name], self.kernel_size)
        if self.positions == "own":
            self._positions(weights, dict.fromkeys(positions[site.name] for site in sites), rng)
        shared: dict[tuple, tuple[Tensor, Tensor]] = {}
        for site in weights.each(sites):
            task = self._task(site, positions[site.name], site.name in first, weights, rng, batch)
            self._write(site.by("Impulse: query_key"), *self._solution(task, shared))

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

    def _task(
        self,
        site: AttentionSite,
        positions: GridPositions | None,
        first: bool,
        weights: Weights,
        rng: Draws,
        batch: Tensor | None,
    ) -> Task:
        return Task(
            site=site,
            positions=positions,
            offsets=self.head_offsets(site, rng),
            border=self.border or self._solver.border,
            first=first,
            draw=lambda part: rng.generator(self._name(site), f"Impulse: {part}"),
            weights=weights,
            batch=batch,
        )

    def _shape(self, task: Task) -> tuple:
        """Return what layers must have in common to share a solution."""
        site = task.site
        sizes = (site.num_heads, site.num_key_value_heads, site.head_dim, site.embed_dim, site.scale, task.grid)
        return (*sizes, id(task.positions), self._solver.variant(task.first))

    def _positions(self, weights: Weights, towers: Iterable[GridPositions | None], rng: Draws) -> None:
        """Optional part: a tower without positions is reported here, and refused by the solvers that need them."""
        for positions in weights.each(towers):
            if positions is None:
                weights.skip("positions", NO_POSITIONS)
            else:
                value = self._solver.own_positions().value(positions.site, rng)
                positions.site.write(value, "Impulse: positions")

    def _solution(self, task: Task, shared: dict[tuple, tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Solve, or take the solution of an earlier layer of the same shape."""
        if not self._shares:
            return self._solver.solve(task)
        shape = self._shape(task)
        if shape not in shared:
            shared[shape] = self._solver.solve(task)
        return shared[shape]

    def _write(self, site: AttentionSite, query: Tensor, key: Tensor) -> None:
        if site.write_query_key(query, key):
            site.note_query_key()

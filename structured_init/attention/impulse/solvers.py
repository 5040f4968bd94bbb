"""The solvers as objects: each one's constants, its own positions, and its pure function on one layer.

Letters: H heads, Hkv key heads, D embed_dim, k head_dim.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor

from structured_init.arguments import check_flag, check_not_negative, check_positive, check_whole
from structured_init.attention.impulse.adam import optimize
from structured_init.attention.impulse.basis import Basis, Factors
from structured_init.attention.impulse.inputs import PseudoInput, layer_norm, pseudo_tokens, real_tokens
from structured_init.attention.impulse.offsets import Border, Order, impulse_maps
from structured_init.attention.impulse.separable import CUTOFF, expressed, separable
from structured_init.attention.impulse.svd import closed_form, noisy_target
from structured_init.attention.impulse.task import Task
from structured_init.attention.position import Positions
from structured_init.errors import StructuredInitError
from structured_init.linalg import random_orthogonal
from structured_init.threads import all_threads

Input = Literal[PseudoInput, "batch"]
EXPRESSED = 0.9  # below this share, positions are reported as too smooth for a shift


class ImpulseSolver(ABC):
    """How queries and keys are found for which attention is the convolution with an impulse.

    Attributes:
        offsets, border, shared: what ``None`` stands for in :class:`Impulse`, as the source has it.
    """

    offsets: Order = "random"
    border: Border = "zero"
    shared: bool = False

    @property
    def needs_batch(self) -> bool:
        """Whether it solves for real images."""
        return False

    @abstractmethod
    def own_positions(self) -> Positions:
        """Return the positions for which the source solves."""

    @abstractmethod
    def solve(self, task: Task) -> tuple[Tensor, Tensor]:
        """Return W_q (H, D, k) and W_k (Hkv, D, k)."""

    def variant(self, first: bool) -> str:
        """Return what distinguishes solutions that are not to be shared."""
        return ""

    def __repr__(self) -> str:
        names = [name for name in inspect.signature(type(self).__init__).parameters if name != "self"]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


class AdamSolver(ImpulseSolver):
    """Gradient descent on the attention map, one solution for all layers (2404.01139). See :func:`optimize`.

    Args:
        iterations: 10,000 as published.
        pseudo_input: what stands for the tokens: ``"P"``, ``"U"``, ``"G"``, ``"A"``, ``"B"``, see
            :func:`pseudo_tokens`; or ``"batch"``, what real images give.
        later_pseudo_input: that of all layers but the first; ``None``: the same.
        layer_norm: normalize the pseudo-input; 2401.12511 does not.
        scale: factor on q·k in the solution, 0.1 in 2401.12511; ``None``: the host's. The queries and keys take up
            the difference, so that the host's map is the one solved for.
    """

    shared = True

    def __init__(
        self,
        iterations: int = 10_000,
        pseudo_input: Input = "P",
        later_pseudo_input: Input | None = None,
        layer_norm: bool = True,
        scale: float | None = None,
    ) -> None:
        valid = ("P", "U", "G", "A", "B", "batch")
        for kind in (pseudo_input, later_pseudo_input or pseudo_input):
            if kind not in valid:
                raise StructuredInitError(f"AdamSolver: pseudo_input must be one of {', '.join(valid)}, got '{kind}'")
        check_whole("AdamSolver", least=0, iterations=iterations)
        check_positive("AdamSolver", null=True, scale=scale)
        check_flag("AdamSolver", layer_norm=layer_norm)
        self.iterations = iterations
        self.pseudo_input: Input = pseudo_input
        self.later_pseudo_input: Input | None = later_pseudo_input
        self.layer_norm = layer_norm
        self.scale = scale

    def own_positions(self) -> Positions:
        return Positions("sincos")

    @property
    def needs_batch(self) -> bool:
        return "batch" in (self.pseudo_input, self.later_pseudo_input)

    def variant(self, first: bool) -> str:
        return self.pseudo_input if first else self.later_pseudo_input or self.pseudo_input

    def solve(self, task: Task) -> tuple[Tensor, Tensor]:
        site = task.site
        if site.prefix_tokens:
            raise StructuredInitError(
                f"AdamSolver: '{site.name}' has {site.prefix_tokens} class or register tokens, which the solver"
                " cannot handle: use mean pooling without a class token, or solver 'svd' or 'separable'"
            )
        scale = site.scale if self.scale is None else self.scale
        inputs, targets = self._inputs(task), impulse_maps(task.offsets, task.grid, border=task.border)
        with all_threads():
            solution = optimize(
                inputs,
                targets,
                site.head_dim,
                scale=scale,
                iterations=self.iterations,
                generator=task.draw("adam"),
                group=task.group,
            )
        if task.group > 1 and self.iterations:
            site.note(f"{task.group} heads share each key: their maps' mean squared error is {solution.loss:.3g}")
        rescale = math.sqrt(scale / site.scale)
        return rescale * solution.query, rescale * solution.key

    def _inputs(self, task: Task) -> Tensor:
        kind = self.variant(task.first)
        if kind == "batch":
            return real_tokens(task.weights, task.site, task.batch)  # normalized by the host
        shape = (task.grid[0] * task.grid[1], task.site.embed_dim)
        known = torch.zeros(shape, dtype=torch.float64) if kind in ("U", "G") else task.known_positions().value
        tokens = pseudo_tokens(kind, known, generator=task.draw("pseudo-input"))
        return (layer_norm(tokens) if self.layer_norm else tokens)[None]


class SvdSolver(ImpulseSolver):
    """Truncated pseudo-inverse and Frobenius normalization (2505.19985). See :func:`closed_form`.

    Args:
        noise: strength of the noise beside an impulse of 1000.
        norm: Frobenius norm of each head's queries, and of its keys.
        gain: of its own positions, N(0, (0.02·gain)²).
    """

    offsets = "fixed"

    def __init__(self, noise: float = 3.0, norm: float = 7.0, gain: float = 18.0) -> None:
        check_not_negative("SvdSolver", noise=noise)
        check_positive("SvdSolver", norm=norm, gain=gain)
        self.noise = noise
        self.norm = norm
        self.gain = gain

    def own_positions(self) -> Positions:
        return Positions("gaussian", gain=self.gain)

    def solve(self, task: Task) -> tuple[Tensor, Tensor]:
        generator = task.draw("svd")
        impulses = (impulse_maps(offset[None], task.grid, border=task.border)[0] for offset in task.offsets)
        targets = (noisy_target(impulse, self.noise, generator=generator) for impulse in impulses)
        if task.group > 1:
            task.site.note(f"{task.group} heads share each key: nothing of their products is lost")
        basis = task.known_positions().basis
        return closed_form(basis, targets, task.site.head_dim, norm=self.norm, group=task.group)


class SeparableSolver(ImpulseSolver):
    """Row shift times column shift, in closed form and exactly of small rank (ours). See :func:`separable`.

    Args:
        strength: c, the logit that a key gains on each axis on which it lies at the offset.
        kappa: how smooth its own positions are, see :func:`row_and_column_codes`; ``None``: not at all.
        gain: their root mean square.
    """

    border = "clamp"

    def __init__(self, strength: float = 8.0, kappa: float | None = 2.0, gain: float = 0.7) -> None:
        check_not_negative("SeparableSolver", strength=strength)
        check_positive("SeparableSolver", gain=gain)
        check_positive("SeparableSolver", null=True, kappa=kappa)
        self.strength = strength
        self.kappa = kappa
        self.gain = gain

    def own_positions(self) -> Positions:
        return Positions("codes", kappa=self.kappa, gain=self.gain)

    def solve(self, task: Task) -> tuple[Tensor, Tensor]:
        site, positions = task.site, task.known_positions()
        basis = positions.basis.cut(cutoff=CUTOFF)
        heads = []
        for offset in map(tuple, task.offsets.tolist()):
            key = (*offset, site.head_dim, task.border)
            if key not in positions.shifts:
                positions.shifts[key] = separable(basis, [offset], task.grid, site.head_dim, border=task.border)
            heads.append(positions.shifts[key])
        worst = min(heads, key=lambda head: head.kept)
        if worst.rank > site.head_dim:
            site.note(
                f"head_dim {site.head_dim} holds {site.head_dim} of the {worst.rank} directions of a shift:"
                f" {1 - worst.kept:.1%} of the product's squared norm is lost"
            )
        if task.group > 1:
            heads = self._shared(task, basis, heads)
        if (share := expressed(basis, task.grid)) < EXPRESSED:
            site.note(f"the positions express {share:.0%} of the functions of rows and columns that a shift needs")
        generator = task.draw("rotation")
        turns = torch.stack([random_orthogonal(site.head_dim, site.head_dim, generator=generator) for _ in heads])
        turns *= math.sqrt(self.strength / site.scale)
        query, key = torch.cat([each.query for each in heads]), torch.stack([each.key for each in heads])
        return basis.right @ (query @ turns.repeat_interleave(task.group, dim=0)), basis.right @ (key @ turns)

    def _shared(self, task: Task, basis: Basis, heads: list[Factors]) -> list[Factors]:
        """Return the solutions of the heads that share a key, given those with keys of their own, and note the cost."""
        site, offsets = task.site, [tuple(offset) for offset in task.offsets.tolist()]
        starts = range(0, site.num_heads, task.group)
        groups = [
            separable(basis, offsets[start : start + task.group], task.grid, site.head_dim, border=task.border)
            for start in starts
        ]
        costs = []
        for start, shared in zip(starts, groups, strict=True):
            own = sum(head.energy * (1 - head.kept) for head in heads[start : start + task.group])
            costs.append(1 - shared.kept - (own / shared.energy if shared.energy else 0.0))
        cost = f"{max(costs):.1%}" if max(costs) > 1e-9 else "nothing"
        site.note(f"{task.group} heads share each key: {cost} of their products' squared norm is lost by that")
        return groups


SOLVERS: dict[str, type[ImpulseSolver]] = {"adam": AdamSolver, "svd": SvdSolver, "separable": SeparableSolver}

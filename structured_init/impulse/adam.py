"""The solver of 2401.12511 and 2404.01139: queries and keys by gradient descent on the attention map itself.

What it takes for the tokens that attention sees are positions, noise, or real activations.

Letters: B inputs, H heads, Hkv key heads, N tokens, D embed_dim, k head_dim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from structured_init.attention.planned_run import run_planned
from structured_init.attention.positions import Positions
from structured_init.hosts.attention import AttentionSite
from structured_init.impulse.solver import ImpulseSolver, Task, impulse_maps, layer_norm
from structured_init.util.arguments import check_choice, check_positive, check_whole
from structured_init.util.errors import StructuredInitError
from structured_init.weights import Weights

PseudoInput = Literal["P", "U", "G", "A", "B"]
Input = Literal[PseudoInput, "batch"]
LEARNING_RATE = 1e-4
RENORMALIZE_EVERY = 100


class Solution(NamedTuple):
    """What the optimization reached."""

    query: Float[Tensor, "heads embed_dim head_dim"]  # W_q (H, D, k)
    key: Float[Tensor, "kv_heads embed_dim head_dim"]  # W_k (Hkv, D, k)
    loss: float  # the mean squared error before the last step


def optimize(
    inputs: Float[Tensor, "inputs tokens embed_dim"],
    targets: Float[Tensor, "heads tokens tokens"],
    head_dim: int,
    *,
    scale: float,
    iterations: int,
    generator: torch.Generator,
    group: int = 1,
    dtype: torch.dtype = torch.float32,
) -> Solution:
    """Minimize the mean of (softmax(s P W_q W_kᵀ Pᵀ) − target)² over inputs, heads, queries and keys.

    W_q and W_k start as U(−1, 1)/√(k H), drawn by ``generator``. Adam (rate 1e-4, other settings PyTorch's) takes
    10,000 steps as published, and before every hundredth, the first included, both are renormalized
    (:func:`renormalize`). So the last hundred run free, which sharpens the map visibly. P is one set of tokens, or
    several, such as real images.

    Where ``group`` heads share a key (ours; the sources have no grouped queries), all their maps pull at one W_k, which
    is drawn and renormalized as that of one head. A result that is not finite is an error.

    Source: 2404.01139, ``impulse_init`` of its code, as described in ``docs/impulse.md``.
    """
    heads, (width, inputs, targets) = targets.shape[0], (inputs.shape[-1], inputs.to(dtype), targets.to(dtype))
    inputs = inputs[:, None]  # (B, 1, N, D): every head sees every input
    query, key = start(heads, width, head_dim, generator=generator, group=group)
    norm = query.norm(dim=1).mean().item()
    query, key = (weight.to(dtype).requires_grad_() for weight in (query, key))
    adam = torch.optim.Adam([query, key], lr=LEARNING_RATE)
    loss = torch.tensor(math.nan)
    with torch.enable_grad():
        for iteration in range(iterations):
            if iteration % RENORMALIZE_EVERY == 0:
                renormalize(query, key, norm)
            adam.zero_grad()
            keys = (inputs @ key).repeat_interleave(group, dim=1)
            logits = scale * (inputs @ query) @ keys.mT
            loss = torch.nn.functional.mse_loss(logits.softmax(-1), targets.expand_as(logits))
            loss.backward()
            adam.step()
    if iterations and not math.isfinite(loss.item()):
        raise StructuredInitError("Impulse: the adam solver diverged: its inputs or its scale are too large")
    return Solution(query.detach(), key.detach(), loss.item())


def start(
    heads: int, embed_dim: int, head_dim: int, *, generator: torch.Generator, group: int = 1
) -> tuple[Tensor, Tensor]:
    """Draw W_q (H, D, k) and W_k (Hkv, D, k) from U(−1, 1)/√(k H): variance 1/(3D) where k H = D."""
    sizes = ((count, embed_dim, head_dim) for count in (heads, heads // group))
    query, key = (2 * torch.rand(size, dtype=torch.float64, generator=generator) - 1 for size in sizes)
    return query / math.sqrt(head_dim * heads), key / math.sqrt(head_dim * heads)


@torch.no_grad()
def renormalize(query: Tensor, key: Tensor, norm: float) -> None:
    """Scale, in place, each of the k columns of W_q and each of the D rows of W_k to length ``norm``.

    The two are not symmetric: the published code stores W_kᵀ (H, k, D) and normalizes both along dimension 1, so
    ‖W_q‖ = norm·√k and ‖W_k‖ = norm·√D.
    """
    query.mul_(norm / query.norm(dim=1, keepdim=True))
    key.mul_(norm / key.norm(dim=2, keepdim=True))


def pseudo_tokens(
    kind: PseudoInput, positions: Float64[Tensor, "tokens embed_dim"], *, generator: torch.Generator
) -> Float64[Tensor, "tokens embed_dim"]:
    """Return the pseudo-input of 2404.01139, not yet normalized.

    ``"P"`` the positions; ``"U"`` U(−1, 1); ``"G"`` N(0, ½) cut at ±2; ``"A"`` P + U; ``"B"`` P + G.
    """
    noise = torch.zeros_like(positions)
    if kind in ("U", "A"):
        noise = 2 * torch.rand(positions.shape, dtype=positions.dtype, generator=generator) - 1
    elif kind in ("G", "B"):
        nn.init.trunc_normal_(noise, std=math.sqrt(0.5), a=-2.0, b=2.0, generator=generator)
    return noise if kind in ("U", "G") else positions + noise


def real_tokens(
    weights: Weights, site: AttentionSite, batch: Tensor | None
) -> Float[Tensor, "inputs tokens embed_dim"]:
    """Return what comes to an attention layer on real inputs, with everything planned before in effect."""
    if batch is None:
        raise StructuredInitError(
            "Impulse: pseudo_input 'batch' needs real images: initialize(model, initializer, batch=images)"
        )
    seen: list[Tensor] = []

    def listen(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append((args or tuple(kwargs.values()))[0].detach().cpu().double())

    with site.module.register_forward_pre_hook(listen, with_kwargs=True):
        run_planned(weights, ((batch,), {}))
    if not seen:
        raise StructuredInitError(f"Impulse: '{site.name}' does not run on the given batch")
    return seen[0]


@dataclass(eq=False)
class AdamSolver(ImpulseSolver):
    """Gradient descent on the attention map, one solution for all layers (2404.01139). See :func:`optimize`.

    Args:
        iterations: 10,000 as published.
        pseudo_input: what stands for the tokens: ``"P"``, ``"U"``, ``"G"``, ``"A"``, ``"B"``, see
            :func:`pseudo_tokens`; or ``"batch"``, what real images give.
        layer_norm: normalize the pseudo-input; 2401.12511 does not.
        scale: factor on q·k in the solution, 0.1 in 2401.12511; ``None``: the host's. The queries and keys take up
            the difference, so that the host's map is the one solved for.
    """

    shared = True

    iterations: int = 10_000
    pseudo_input: Input = "P"
    layer_norm: bool = True
    scale: float | None = None

    def __post_init__(self) -> None:
        check_choice("AdamSolver", pseudo_input=(self.pseudo_input, Input))
        check_whole("AdamSolver", least=0, iterations=self.iterations)
        check_positive("AdamSolver", null=True, scale=self.scale)

    def own_positions(self) -> Positions:
        return Positions("sincos")

    @property
    def needs_batch(self) -> bool:
        return self.pseudo_input == "batch"

    def solve(self, task: Task) -> tuple[Tensor, Tensor]:
        site = task.site
        if site.prefix_tokens:
            raise StructuredInitError(
                f"AdamSolver: '{site.name}' has {site.prefix_tokens} class or register tokens, which the solver"
                " cannot handle: use mean pooling without a class token, or solver 'svd' or 'separable'"
            )
        scale = site.scale if self.scale is None else self.scale
        inputs, targets = self._inputs(task), impulse_maps(task.offsets, task.grid, border=task.border)
        how = {"scale": scale, "iterations": self.iterations, "group": task.group}
        solution = optimize(inputs, targets, site.head_dim, **how, generator=task.draw("adam"))
        if task.group > 1 and self.iterations:
            site.note(f"{task.group} heads share each key: their maps' mean squared error is {solution.loss:.3g}")
        rescale = math.sqrt(scale / site.scale)
        return rescale * solution.query, rescale * solution.key

    def _inputs(self, task: Task) -> Tensor:
        kind = self.pseudo_input
        if kind == "batch":
            return real_tokens(task.weights, task.site, task.batch)  # normalized by the host
        shape = (task.grid[0] * task.grid[1], task.site.embed_dim)
        known = torch.zeros(shape, dtype=torch.float64) if kind in ("U", "G") else task.known_positions().value
        tokens = pseudo_tokens(kind, known, generator=task.draw("pseudo-input"))
        return (layer_norm(tokens) if self.layer_norm else tokens)[None]

"""What a solver takes for the tokens that attention sees: positions, noise, or real activations.

Letters: B inputs, N tokens of a grid (Gy, Gx), D embed_dim.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from structured_init.attention.forward import run_planned
from structured_init.errors import StructuredInitError
from structured_init.plan import Weights
from structured_init.sites.attention import AttentionSite

PseudoInput = Literal["P", "U", "G", "A", "B"]


def layer_norm(tokens: Float64[Tensor, "*inputs tokens embed_dim"]) -> Float64[Tensor, "*inputs tokens embed_dim"]:
    """Layer normalization without parameters, ε = 1e-5, as the published solvers apply it to positions."""
    return torch.nn.functional.layer_norm(tokens, tokens.shape[-1:])


def pseudo_tokens(
    kind: PseudoInput, positions: Float64[Tensor, "tokens embed_dim"], *, generator: torch.Generator
) -> Float64[Tensor, "tokens embed_dim"]:
    """Return the pseudo-input of 2404.01139, not yet normalized.

    Args:
        kind: ``"P"`` the positions; ``"U"`` U(−1, 1); ``"G"`` N(0, ½) cut at ±2; ``"A"`` P + U; ``"B"`` P + G.
        positions: P; for U and G only its shape counts.
        generator: draws U or G, once per solution.
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
    """Return what comes to an attention layer on real inputs, with everything planned before in effect.

    Raises:
        StructuredInitError: there is no batch, or the layer is not called on it.
    """
    if batch is None:
        raise StructuredInitError(
            "Impulse: pseudo_input 'batch' needs real images: initialize(model, initializer, batch=images)"
        )
    seen: list[Tensor] = []

    def listen(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append((args or tuple(kwargs.values()))[0].detach().cpu().double())

    handle = site.module.register_forward_pre_hook(listen, with_kwargs=True)
    try:
        run_planned(weights, ((batch,), {}))
    finally:
        handle.remove()
    if not seen:
        raise StructuredInitError(f"Impulse: '{site.name}' does not run on the given batch")
    return seen[0]

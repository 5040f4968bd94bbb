"""The solver of 2401.12511 and 2404.01139: queries and keys by gradient descent on the attention map itself.

Letters: B inputs, H heads, Hkv key heads, N tokens, D embed_dim, k head_dim.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from structured_init.errors import StructuredInitError

LEARNING_RATE = 1e-4
RENORMALIZE_EVERY = 100


class Solution(NamedTuple):
    """What the optimization reached.

    Attributes:
        query: W_q (H, D, k).
        key: W_k (Hkv, D, k).
        loss: the mean squared error before the last step.
    """

    query: Float[Tensor, "heads embed_dim head_dim"]
    key: Float[Tensor, "kv_heads embed_dim head_dim"]
    loss: float


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

    W_q and W_k start as U(−1, 1)/√(k H). Adam (rate 1e-4, other settings PyTorch's) takes ``iterations`` steps, and
    before every hundredth, the first included, both are renormalized (:func:`renormalize`). So of 10,000 steps the
    last hundred run free, which sharpens the map visibly.

    Where heads share a key (ours; the sources have no grouped queries), all their maps pull at one W_k, which is drawn
    and renormalized as that of one head.

    Args:
        inputs: P, the tokens that attention sees: one set, or several, such as real images.
        targets: the map asked for of each head.
        head_dim: k.
        scale: s, the factor on q·k.
        iterations: 10,000 as published.
        generator: draws the first W_q and W_k.
        group: H/Hkv, how many heads share a key.
        dtype: of the optimization; float32 as published.

    Raises:
        StructuredInitError: the result is not finite.

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
            keys = inputs @ key
            keys = keys if group == 1 else keys.repeat_interleave(group, dim=1)
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
    query, key = (
        2 * torch.rand(count, embed_dim, head_dim, dtype=torch.float64, generator=generator) - 1
        for count in (heads, heads // group)
    )
    return query / math.sqrt(head_dim * heads), key / math.sqrt(head_dim * heads)


@torch.no_grad()
def renormalize(query: Tensor, key: Tensor, norm: float) -> None:
    """Scale, in place, each of the k columns of W_q and each of the D rows of W_k to length ``norm``.

    The two are not symmetric: the published code stores W_kᵀ (H, k, D) and normalizes both along dimension 1, so
    ‖W_q‖ = norm·√k and ‖W_k‖ = norm·√D.
    """
    query.mul_(norm / query.norm(dim=1, keepdim=True))
    key.mul_(norm / key.norm(dim=2, keepdim=True))

"""The scan of Mamba-2 on a CPU: one decay per head makes every chunk a few matrix products.

Letters: B batch, L tokens, H heads, P head_dim, G groups, N states, c chunks of T tokens.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

CHUNK = 32  # measured in benchmarks/results/scan_speed.md


def head_scan(
    x: Float[Tensor, "B L H P"],
    step: Float[Tensor, "B L H"],
    A: Float[Tensor, " H"],
    B: Float[Tensor, "B L G N"],
    C: Float[Tensor, "B L G N"],
    chunk: int = CHUNK,
) -> Float[Tensor, "B L H P"]:
    """Return y of h_t = exp(Δ_t A) h_{t−1} + Δ_t x_t B_tᵀ, y_t = h_t C_t, from a zero state (2405.21060, §6).

    Inside a chunk y = (C Bᵀ ∘ decay) x, a product with a lower-triangular matrix; between chunks the state is carried.

    Args:
        x: inputs, at least one token.
        step: Δ, behind its softplus.
        A: negative decay rates.
        B: input projections; heads of a group share them.
        C: output projections.
        chunk: T.
    """
    tokens, groups = x.shape[1], B.shape[2]
    chunk = math.ceil(tokens / math.ceil(tokens / chunk))  # no longer than it need be for as many chunks
    values = _chunks(x * step[..., None], chunk).unflatten(2, (groups, -1))  # (B, c, G, H/G, T, P)
    inward, outward = _chunks(B, chunk), _chunks(C, chunk)  # (B, c, G, T, N): of all heads of a group
    # Differences of running sums: in float64, for they cancel.
    elapsed = _chunks((step.double() * A.double())[..., None], chunk)[..., 0].cumsum(-1).unflatten(2, (groups, -1))
    future = torch.ones(chunk, chunk, dtype=torch.bool, device=x.device).triu(1)
    between = (elapsed[..., :, None] - elapsed[..., None, :]).to(x.dtype).masked_fill(future, -torch.inf)
    y = ((outward @ inward.mT)[:, :, :, None] * between.exp()) @ values
    if y.shape[1] > 1:
        until_end = (elapsed[..., -1:] - elapsed).to(x.dtype).exp()[..., None]
        whole = elapsed[..., -1].to(x.dtype).exp()[:, :, :, None, :, None]  # (B, c, G, 1, H/G, 1)
        states = _states(inward[:, :-1], (values * until_end)[:, :-1], whole[:, 1:])
        # The heads of a group side by side: one product (T, N) x (N, H/G P).
        carried = (outward[:, 1:] @ states.flatten(-2)).unflatten(-1, states.shape[-2:]).movedim(-3, -2)
        y = y + F.pad(carried, (0,) * 8 + (1, 0)) * elapsed.to(x.dtype).exp()[..., None]
    return y.flatten(2, 3).movedim(2, 3).flatten(1, 2)[:, :tokens]


def _states(
    inward: Float[Tensor, "B c G T N"], values: Float[Tensor, "B c G R T P"], whole: Float[Tensor, "B c G 1 R 1"]
) -> Float[Tensor, "B c G N R P"]:
    """Return the state at the end of each chunk.

    Args:
        inward: B.
        values: the inputs, as far as they are left at the end of their chunk.
        whole: what a chunk leaves of the state it begins with; of every chunk but the first.
    """
    side_by_side = values.movedim(-3, -2).flatten(-2)  # (B, c, G, T, R P)
    added = (inward.mT @ side_by_side).unflatten(-1, (values.shape[3], -1))
    states = [added[:, 0]]
    for left, new in zip(whole.unbind(1), added[:, 1:].unbind(1), strict=False):
        states.append(left * states[-1] + new)
    return torch.stack(states, dim=1)


def _chunks(tensor: Float[Tensor, "B L H K"], chunk: int) -> Float[Tensor, "B c H T K"]:
    """Fill up with zeros to whole chunks, and put the chunks' tokens behind the heads."""
    padding = -tensor.shape[1] % chunk
    return F.pad(tensor, (0, 0, 0, 0, 0, padding)).unflatten(1, (-1, chunk)).movedim(3, 2)

"""The scan of Mamba-2 on a CPU: one decay per head makes every chunk a few matrix products.

Letters: B batch, L tokens, H heads, P head_dim, G groups, N states, c chunks of T tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

CHUNK = 32  # measured in benchmarks/scan_speed.py


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
        x: inputs.
        step: Δ, behind its softplus.
        A: negative decay rates.
        B: input projections; heads of a group share them.
        C: output projections.
        chunk: T.
    """
    tokens, group = x.shape[1], x.shape[2] // B.shape[2]
    values = _chunks(x * step[..., None], chunk)  # (B, c, H, T, P)
    inward, outward = (_chunks(each, chunk).repeat_interleave(group, dim=2) for each in (B, C))  # (B, c, H, T, N)
    # Differences of running sums: in float64, for they cancel.
    elapsed = _chunks((step.double() * A.double())[..., None], chunk)[..., 0].cumsum(-1)  # (B, c, H, T)
    future = torch.ones(chunk, chunk, dtype=torch.bool, device=x.device).triu(1)
    between = (elapsed[..., :, None] - elapsed[..., None, :]).to(x.dtype).masked_fill(future, -torch.inf)
    inside = (outward @ inward.mT * between.exp()) @ values

    until_end = (elapsed[..., -1:] - elapsed).to(x.dtype).exp()[..., None]
    added = (inward * until_end).mT @ values  # (B, c, H, N, P)
    states, state = [], torch.zeros_like(added[:, 0])
    for whole, new in zip(elapsed[..., -1].to(x.dtype).exp().unbind(1), added.unbind(1), strict=True):
        states.append(state)
        state = whole[..., None, None] * state + new
    carried = (outward * elapsed.to(x.dtype).exp()[..., None]) @ torch.stack(states, dim=1)
    return (inside + carried).movedim(2, 3).flatten(1, 2)[:, :tokens]


def _chunks(tensor: Float[Tensor, "B L H K"], chunk: int) -> Float[Tensor, "B c H T K"]:
    """Fill up with zeros to whole chunks, and put the chunks' tokens behind the heads."""
    padding = -tensor.shape[1] % chunk
    return F.pad(tensor, (0, 0, 0, 0, 0, padding)).unflatten(1, (-1, chunk)).movedim(3, 2)

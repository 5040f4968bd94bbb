"""Rotary positions, read off queries before and after they were turned.

Letters: H heads, R tokens, k head_dim, r turned pairs.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Complex128, Float64, Int64
from torch import Tensor

from structured_init.watch.assemble import TURNS, Watched
from structured_init.watch.found import Turns

EXACT = 1e-2  # radians by which an angle may be off: pairs that are none are off by any
STILL = 1e-7  # radians per token below which a pair is not turned


def turns_of(watched: Watched) -> Turns | None:
    """Read how the queries of a layer were turned; ``None`` where they were not by a constant angle per token.

    Coordinates are tried as pairs as in Llama, i with i + d/2, and as in GPT-J, 2i with 2i + 1, among the first or the
    last d of a head. Those are right whose angles grow evenly with the token in every head.
    """
    call = watched.parts[0]
    linear, product = call.linears[0], call.product
    if len(watched.parts) > 1 or not TURNS & product.query_tag.path or product.columns is None or len(product.rows) < 3:
        return None
    order = call.channels.to(product.query.device)[:, None].expand(-1, len(product.rows), -1)
    after = product.query.gather(2, order)[watched.order].double().cpu()
    y = linear.y.reshape(-1, linear.y.shape[-1]).double().cpu()[product.rows.cpu()]
    before = y[:, watched.columns[0].cpu()].movedim(1, 0)
    if before.shape != after.shape:
        return None
    for pairs in _candidates(before.shape[2]):
        found = _frequencies(_turned(before, pairs), _turned(after, pairs), product.rows.cpu().double())
        if found is not None:
            moving = found > STILL
            return Turns(found[moving], pairs[moving]) if moving.any() else None
    return None


def _candidates(head_dim: int) -> list[Int64[Tensor, "r 2"]]:
    """Return the pairs of coordinates that may be turned, most first."""
    found = []
    for turned in range(head_dim - head_dim % 2, 1, -2):
        half, even = torch.arange(turned // 2), 2 * torch.arange(turned // 2)
        for start in {0, head_dim - turned}:
            found.append(start + torch.stack([half, half + turned // 2], dim=1))
            found.append(start + torch.stack([even, even + 1], dim=1))
    return found


def _turned(vectors: Float64[Tensor, "H R k"], pairs: Int64[Tensor, "r 2"]) -> Complex128[Tensor, "H R r"]:
    return torch.complex(vectors[..., pairs[:, 0]], vectors[..., pairs[:, 1]])


def _frequencies(
    before: Complex128[Tensor, "H R r"], after: Complex128[Tensor, "H R r"], tokens: Float64[Tensor, " R"]
) -> Float64[Tensor, " r"] | None:
    """Return the angle of each pair per token, where it is the same in all heads and grows evenly; else ``None``."""
    angle = (after * before.conj()).angle()
    between = angle.diff(dim=1)[:, tokens.diff() == 1]  # of neighbours: others may have gone round in between
    step = torch.polar(torch.ones_like(between), between).mean(dim=(0, 1)).angle()
    for _ in range(2):  # the first step tells how often the angle went round, all of them how far
        rest = torch.polar(torch.ones_like(angle), angle - tokens[:, None] * step).angle()
        if rest.abs().max() > math.pi / 2:
            return None
        centred = tokens - tokens.mean()
        step = step + (centred[:, None] * rest).sum(dim=1).mean(dim=0) / centred.square().sum()
    rest = torch.polar(torch.ones_like(angle), angle - tokens[:, None] * step).angle()
    even = (rest - rest.mean(dim=(0, 1))).abs().max() < EXACT
    return step if even and (step > -STILL).all() else None

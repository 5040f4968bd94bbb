"""Looking at an offset through added positions: codes of many frequencies, and heads that turn some of them.

Letters: D embed_dim, F = D/2 frequencies, k head_dim, m = k/2, N tokens, H heads. Row vectors: q = x W_q.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from structured_init.attention.sequence.share import last_queries, mean_share, visible

SAMPLES = 256  # queries over which a share is averaged, of several contents where the context has few


class Codes(NamedTuple):
    """Codes of mean square 1: token t has √2 cos(ω_j t + φ_j) in coordinate j, √2 sin(…) in coordinate F + j."""

    frequencies: Float64[Tensor, " frequencies"]
    phases: Float64[Tensor, " frequencies"]

    def at(self, tokens: Int[Tensor, " tokens"], embed_dim: int) -> Float64[Tensor, "tokens embed_dim"]:
        """The codes of some tokens (N, D); a last odd coordinate is zero."""
        angle = tokens[:, None].double() * self.frequencies + self.phases
        codes = math.sqrt(2) * torch.cat([angle.cos(), angle.sin()], dim=1)
        return torch.nn.functional.pad(codes, (0, embed_dim - codes.shape[1]))


def position_codes(embed_dim: int, length: int, *, generator: torch.Generator) -> Codes:
    """Draw codes that tell ``length`` tokens apart.

    The frequencies are π (j + u_j)/F. In contexts of up to D tokens u_j = ½, for which the codes of different tokens
    are orthogonal; equidistant frequencies repeat themselves beyond, so there u_j is drawn from U(0, 1), and two codes
    have a product of about 1/√F. Phases are drawn, so that no token is special and no norm finds a mean to take out.

    Args:
        embed_dim: D.
        length: N.
        generator: draws phases, and u.
    """
    count = embed_dim // 2
    phases = 2 * math.pi * torch.rand(count, dtype=torch.float64, generator=generator)
    place = torch.rand(count, dtype=torch.float64, generator=generator) if length > embed_dim else 0.5
    return Codes(math.pi * (torch.arange(count, dtype=torch.float64) + place) / count, phases)


def choose_frequencies(count: int, head_dim: int, *, generator: torch.Generator) -> Int[Tensor, " m"]:
    """Choose one frequency of each of m = k/2 equal bands, at random: all scales, and no common period."""
    chosen = min(head_dim // 2, count)
    place = torch.arange(chosen) + torch.rand(chosen, dtype=torch.float64, generator=generator)
    return (place * count / chosen).long().clamp(max=count - 1)


def offset_head(
    codes: Codes, chosen: Int[Tensor, " m"], offset: int, embed_dim: int, head_dim: int
) -> Float64[Tensor, "embed_dim head_dim"]:
    """W with x W = the chosen frequencies of the token ``offset`` before: W_q of a head, and with offset 0 its W_k.

    So the product of W_q and W_k on codes is 2 Σ_j cos ω_j (t − offset − s): largest, k, at s = t − offset.
    """
    count, size = len(codes.frequencies), len(chosen)
    angle = codes.frequencies[chosen] * offset
    weight, place = torch.zeros(embed_dim, head_dim, dtype=torch.float64), torch.arange(size)
    weight[chosen, place] = angle.cos()
    weight[count + chosen, place] = angle.sin()
    weight[chosen, size + place] = -angle.sin()
    weight[count + chosen, size + place] = angle.cos()
    return weight


def share_of_attention(
    codes: Codes,
    chosen: Int[Tensor, " m"],
    offset: int,
    length: int,
    *,
    gain: float,
    causal: bool,
    generator: torch.Generator,
) -> Callable[[float], float]:
    """Return which share of attention a head puts on its offset at the end of a context, as a function of its strength.

    What attention reads is a·code + √(1 − a²)·content with a² = gain²/(1 + gain²), and the logits are the strength
    times the product of a head's queries and keys. Content is drawn from a normal distribution, which is what random
    embeddings are in the few directions that a head reads.

    Args:
        codes: of the positions.
        chosen: the head's frequencies.
        offset: how far it looks back.
        length: N.
        gain: root mean square of positions over that of content.
        causal: whether later tokens are hidden.
        generator: draws the content.
    """
    own = gain**2 / (1 + gain**2)
    part = Codes(codes.frequencies[chosen], codes.phases[chosen])
    queries = last_queries(length, offset)
    shape = (-(-SAMPLES // len(queries)), length, 2 * len(chosen))
    content = torch.randn(shape, dtype=torch.float64, generator=generator)
    keys = math.sqrt(own) * part.at(torch.arange(length), 2 * len(chosen)) + math.sqrt(1 - own) * content
    turned = keys[:, queries] @ offset_head(part, torch.arange(len(chosen)), offset, shape[2], shape[2])
    logits, seen = turned @ keys.mT, visible(queries, length, causal=causal)
    return lambda strength: mean_share(strength * logits, queries - offset, seen)

"""Looking at an offset through added positions: codes of many frequencies, and heads that turn some of them.

Letters: D embed_dim, F = D/2 frequencies, k head_dim, m = k/2, N tokens, H heads. Row vectors: q = x W_q.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from structured_init.attention.sequence.heads import (
    Layer,
    Outcome,
    Reached,
    Shares,
    first_that_suffices,
    last_queries,
    mean_share,
    visible,
    write_product,
)
from structured_init.attention.sequence.measured import positions_in, read_by, reading_as_large_as_seen
from structured_init.hosts.stream import Stream, stream_into

GAINS = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0)  # of positions over content, the least that suffices is taken
SAMPLES = 256  # queries over which a share is averaged, of several contents where the context has few
ROUNDS = 6  # of looking how large content is beside positions
OTHER, NEAR = 1.5, 1.1  # times as large as was taken for granted, from which on content is what was seen, and how near


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


class Solved(NamedTuple):
    """Codes for a layer, and the heads that read them, with the least gain that suffices."""

    codes: Codes
    chosen: dict[int, Int[Tensor, " m"]]  # number of a key → the frequencies that it and its queries read
    gain: float
    found: dict[int, Reached]
    predicted: Callable[..., float]


def solved_on_codes(layer: Layer) -> Solved:
    """Choose codes, frequencies, the gain of positions and the strength of heads; nothing is written."""
    site, table = layer.site, layer.positions.absolute
    assert table is not None
    draw = layer.rng.generator(table.name, "PreviousToken: codes")
    codes = position_codes(site.embed_dim, table.num_tokens, generator=draw)
    chosen = {
        key: choose_frequencies(len(codes.phases), site.head_dim, generator=layer.draw(f"frequencies {key}"))
        for key in layer.keys
    }

    def shares(head: int, key: int, offset: int, gain: float) -> Shares:
        return lambda length: share_of_attention(
            codes, chosen[key], offset, length, gain=gain, causal=layer.causal, generator=layer.draw(f"content {head}")
        )

    return Solved(codes, chosen, *first_that_suffices(layer, shares, GAINS if layer.gain is None else (layer.gain,)))


def through_absolute(layer: Layer) -> Outcome:
    """Write codes as positions, and heads that read some of their frequencies."""
    site, table = layer.site, layer.positions.absolute
    assert table is not None
    stream = stream_into(site, layer.weights, table.tensor)
    codes, chosen, gain, found, predicted = solved_on_codes(layer)
    everywhere = codes.at(torch.arange(table.num_tokens), site.embed_dim)
    free = _spared(layer, chosen.values())
    everywhere[:, free] = 0.0
    share = everywhere.square().mean().item()
    if layer.written:
        layer = reading_as_large_as_seen(layer)
    else:
        layer, stream = _among_content(layer, stream, gain * everywhere)
    if not table.saved:
        layer.weights.warn(f"'{table.name}' is not saved in checkpoints: a reloaded model has its original positions")
    weight = lambda key, offset: offset_head(codes, chosen[key], offset, site.embed_dim, site.head_dim)  # noqa: E731
    strengths = {head: each.strength / site.scale for head, each in found.items()}
    write_product(layer, strengths, lambda _, key, offset: weight(key, offset[1]), lambda key: weight(key, 0))
    if len(free):  # solved for codes everywhere: a norm divides by less, so that logits are stronger
        times, solved = (1 + gain**2) / (1 + share * gain**2), predicted
        predicted = lambda head, length: solved(head, length, times)  # noqa: E731
        found = {head: each._replace(share=predicted(head, layer.length)) for head, each in found.items()}
    larger = f"{gain * math.sqrt(share):.3g} times as large as content"
    how = f"positions {larger}, whose root mean square is {stream.rms:.2g} ({stream.known})"
    how = "positions as written for a layer before" if layer.written else how
    size = 1.0 if stream.normalized else stream.rms * math.sqrt(1 + gain**2)
    return Outcome(found, predicted, how, free, gain, layer.reads, size)


def _spared(layer: Layer, chosen: Iterable[Tensor]) -> Tensor:
    """Return coordinates whose frequencies no head reads, drawn at random, as many as the first number asked for."""
    count = layer.site.embed_dim // 2
    rest = torch.ones(count, dtype=torch.bool)
    rest[torch.cat(list(chosen))] = False
    unread = rest.nonzero()[:, 0]
    taken = next((-(-number // 2) for number in layer.spare if number <= 2 * len(unread)), 0)
    order = torch.rand(len(unread), generator=layer.draw("spare frequencies")).argsort()[:taken]
    return torch.cat([unread[order], count + unread[order]])


def _among_content(layer: Layer, stream: Stream, codes: Tensor) -> tuple[Layer, Stream]:
    """Write codes as positions, as many times as large as content as they are given; return both as they are seen.

    Some hosts multiply embeddings or positions before they add them. So what the layer reads is looked at in a forward
    pass, and where the positions in it are not what they should be, content is taken for so much larger or smaller.
    """
    table, square, given = layer.positions.absolute, codes.square().mean().item(), stream
    off = NEAR if stream.known == "convolution" else OTHER  # what inputs are like nobody said
    for _ in range(ROUNDS):
        reads = []
        for sign in (-1, 1):
            table.write(sign * stream.rms * codes, "PreviousToken: positions")
            reads.append(read_by(layer))
        if any(read is None for read in reads):
            break
        part = positions_in(reads)
        ratio = math.sqrt(square * (1 - part) / part)  # of content, as it is read, to what it was taken for
        if 1 / off < ratio < off:
            break
        stream, off = replace(stream, rms=stream.rms * ratio, known="measured"), NEAR
    else:
        if not 1 / OTHER < ratio < OTHER:  # what is read does not answer to what is written
            stream = given
            table.write(stream.rms * codes, "PreviousToken: positions")
            layer.weights.warn(
                f"how much of '{table.name}' attention reads could not be measured: content is taken to have a root"
                f" mean square of {stream.rms:.2g}"
            )
    return reading_as_large_as_seen(layer), stream

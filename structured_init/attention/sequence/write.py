"""Writing heads that look at offsets, a function for each kind of positions.

Letters: H heads, Hkv key heads, D embed_dim, k head_dim, N tokens, u a unit direction of the stream (D).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from structured_init.attention.sequence import absolute, relative, rotary
from structured_init.attention.sequence.job import CLEAR, Job, Outcome
from structured_init.attention.sequence.matrices import (
    COMMON,
    common_direction,
    normed,
    orthonormal,
    write_constants,
    write_product,
)
from structured_init.attention.sequence.seen import lasts, positions_in, read_by, reading_as_large_as_seen
from structured_init.attention.sequence.share import (
    Reached,
    Share,
    last_queries,
    least_strength,
    mean_share,
    reach,
    visible,
)
from structured_init.errors import StructuredInitError
from structured_init.sites.bias import projection_bias
from structured_init.sites.stream import Stream, stream_into

GAINS = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0)  # of positions over content, the least that suffices is taken
CONTENT = (1.0, 0.5, 0.25, 0.125, 0.0)  # of the host's queries and keys, the most that leaves the share
ROUNDS = 6  # of looking how large content is beside positions
OTHER, NEAR = 1.5, 1.1  # times as large as was taken for granted, from which on content is what was seen, and how near

Shares = Callable[[int], Share]  # context → share as a function of the strength


def through_relative(job: Job) -> Outcome:
    """Raise each head's entry for its offset; queries and keys stay the host's."""
    table = job.positions.relative
    assert table is not None
    where = relative.places(job.size)
    queries_of, keys_of = job.content(biased=True)
    entries, found = table.get(job.weights).double(), {}
    for head, key, offset in job.heads:
        queries, targets = relative.asking(job.size, offset)
        rows = table.rows((where[queries][:, None] - where[None]).flatten(0, 1)).view(len(queries), -1)
        raised = rows == table.rows(torch.tensor([offset]))
        bias = entries[:, head][rows].masked_fill(raised, 0.0)
        content = job.site.scale * normed(job, queries_of[head])[queries] @ normed(job, keys_of[key]).mT
        share = relative.share_of_attention(bias, raised.double(), content, queries, targets, causal=job.causal)
        found[head] = least_strength(share, job.target)
        table.set(job.weights, head, offset, found[head].strength, "PreviousToken: relative positions")
    how = "a table of relative positions" + (", which other layers read as well" if table.shared else "")
    ends = {head: 0 for head, each in found.items() if each.share < CLEAR}
    return Outcome(found, ends, _stream(job), how)


def through_absolute(job: Job, gain: float | None, spare: Sequence[int] = ()) -> tuple[Outcome, float]:
    """Write codes as positions, and heads that read some of their frequencies; return the gain as well.

    Args:
        job: the layer.
        gain: root mean square of positions over that of content; ``None`` for the least that suffices.
        spare: how many coordinates positions are to leave to content: the first number that heads leave as well.
    """
    site, table = job.site, job.positions.absolute
    assert table is not None
    stream = stream_into(site, job.weights, table.tensor)
    draw = job.rng.generator(table.name, "PreviousToken: codes")
    codes = absolute.position_codes(site.embed_dim, table.num_tokens, generator=draw)
    chosen = {
        key: absolute.choose_frequencies(len(codes.phases), site.head_dim, generator=job.draw(f"frequencies {key}"))
        for key in job.keys
    }

    def shares(head: int, key: int, offset: int, gain: float) -> Shares:
        return lambda length: absolute.share_of_attention(
            codes, chosen[key], offset, length, gain=gain, causal=job.causal, generator=job.draw(f"content {head}")
        )

    gain, found, ends = _first_that_suffices(job, shares, GAINS if gain is None else (gain,))
    everywhere = codes.at(torch.arange(table.num_tokens), site.embed_dim)
    free = _spared(job, chosen.values(), spare)
    everywhere[:, free] = 0.0
    job, stream = _among_content(job, stream, gain * everywhere)
    if not table.saved:
        job.weights.warn(f"'{table.name}' is not saved in checkpoints: a reloaded model has its original positions")
        if not lasts(job):
            job.weights.warn(
                f"'{table.name}' is built anew when an input has more than {table.num_tokens:,} tokens: then heads no"
                " longer look at their offsets, in inputs of any length"
            )

    def weight(key: int, offset: int) -> Tensor:
        return absolute.offset_head(codes, chosen[key], offset, site.embed_dim, site.head_dim)

    strengths = {head: each.strength / site.scale for head, each in found.items()}
    write_product(job, strengths, lambda _, key, offset: weight(key, offset[1]), lambda key: weight(key, 0))
    how = f"positions {gain:g} times as large as content, whose root mean square is {stream.rms:.2g} ({stream.known})"
    return Outcome(found, ends, 1.0 if stream.normalized else stream.rms * math.sqrt(1 + gain**2), how, free), gain


def _spared(job: Job, chosen: Iterable[Tensor], spare: Sequence[int]) -> Tensor:
    """Return coordinates whose frequencies no head reads, drawn at random, as many as the first number that they give.

    None where they give no number.
    """
    count = job.site.embed_dim // 2
    rest = torch.ones(count, dtype=torch.bool)
    rest[torch.cat(list(chosen))] = False
    unread = rest.nonzero()[:, 0]
    taken = next((-(-number // 2) for number in spare if number <= 2 * len(unread)), 0)
    order = torch.rand(len(unread), generator=job.draw("spare frequencies")).argsort()[:taken]
    return torch.cat([unread[order], count + unread[order]])


def _among_content(job: Job, stream: Stream, codes: Tensor) -> tuple[Job, Stream]:
    """Write codes as positions, as many times as large as content as they are given, and see that they arrive so.

    Some hosts multiply embeddings or positions before they add them. So what the layer reads is looked at in a forward
    pass, and where the positions in it are not what they should be, content is taken for so much larger or smaller.

    Returns:
        The layer and the stream as they were seen.
    """
    table, square, off = job.positions.absolute, codes.square().mean().item(), OTHER
    for _ in range(ROUNDS):
        table.write(stream.rms * codes, "PreviousToken: positions")
        found = read_by(job)
        part = None if found is None else positions_in(found)
        if part is None:
            break
        ratio = math.sqrt(square * (1 - part) / part)  # of content, as it is read, to what it was taken for
        if 1 / off < ratio < off:
            break
        stream, off = replace(stream, rms=stream.rms * ratio, known="measured"), NEAR
    return reading_as_large_as_seen(job), stream


def through_rotary(job: Job) -> Outcome:
    """Write constant parts of queries and keys: into biases, or as what reads a direction common to all tokens."""
    site, turns = job.site, job.positions.rotary
    assert turns is not None
    query_bias, key_bias = (projection_bias(site.module, each) for each in (site.layout.query, site.layout.key))
    biases = None if query_bias is None or key_bias is None else (query_bias, key_bias)
    queries_of, keys_of = job.content(biased=False)
    direction = common_direction(job) if biases is None else None
    own = 1.0 if direction is None else 1 / math.sqrt(1 + COMMON**2)  # of content, beside the direction
    first = -max(0, *(offset[1] for _, _, offset in job.heads)) if job.causal else 1 - job.length
    distances = torch.arange(first, job.length)
    kernel = rotary.best_weights(turns.frequencies, distances[distances != 0], job.target)
    parts = {head: rotary.constant_parts(kernel, turns, offset[1], site.head_dim) for head, _, offset in job.heads}

    def shares(head: int, key: int, offset: int, kept: float) -> Shares:
        def at(length: int) -> Share:
            tokens, queries = torch.arange(length), last_queries(length, offset)
            seen = visible(queries, length, causal=job.causal)

            def share(strength: float) -> float:
                amplitude = math.sqrt(strength / site.scale)
                query = own * kept * queries_of[head][queries] + amplitude * parts[head][0]
                keys = own * kept * keys_of[key][:length] + amplitude * parts[head][1]
                query, keys = (
                    rotary.turn(normed(job, each), where, turns) for each, where in ((query, queries), (keys, tokens))
                )
                return mean_share(site.scale * query @ keys.mT, queries - offset, seen)

            return share

        return at

    # A norm of queries and keys makes the same of all sizes but those below its epsilon: here they are the host's.
    least = site.scale * site.head_dim * _rms(queries_of) * _rms(keys_of) if site.layout.query_key_norm else 0.0
    kept, found, ends = _first_that_suffices(job, shares, CONTENT, least)
    job = reading_as_large_as_seen(job)
    strengths = {head: each.strength / site.scale for head, each in found.items()}
    write_constants(job, strengths, parts, kept, biases, direction)
    how = "biases of turned queries and keys"
    if direction is not None:
        how = "a direction common to all token embeddings, which were changed: tied to the output, it adds the same to"
        how += " every logit"
    how += "" if kept == 1 else f"; the host's own queries and keys are {kept:g} times what they were"
    return Outcome(found, ends, _stream(job), how)


def through_alibi(job: Job) -> Outcome:
    """Keep tokens from looking at themselves, W_q W_kᵀ = −β V Vᵀ, so that the nearest other one, before, is first."""
    site, found = job.site, job.positions.alibi
    assert found is not None
    reached, width = {}, site.head_dim
    for head, _, _ in job.heads:
        seen_by_head = torch.randn(job.length, width, dtype=torch.float64, generator=job.draw(f"content {head}"))
        queries, tokens = last_queries(job.length, 1), torch.arange(job.length)
        distant = -found.slopes[head] * (queries[:, None] - tokens)
        alike = seen_by_head[queries] @ seen_by_head.mT
        seen = visible(queries, job.length, causal=True)

        def share(strength: float, distant: Tensor = distant, alike: Tensor = alike) -> float:
            return mean_share(distant - strength * alike, queries - 1, seen)  # noqa: B023 - called in this round only

        reached[head] = least_strength(share, job.target, sufficient=0.97)  # the bound is the slope's
    strengths = {head: each.strength / site.scale for head, each in reached.items()}
    write_product(job, strengths, lambda _, key, offset: -orthonormal(job, key), lambda key: orthonormal(job, key))
    slopes = ", ".join(f"{found.slopes[head].item():.2g}" for head, _, _ in job.heads)
    ends = {head: 0 for head, each in reached.items() if each.share < CLEAR}
    how = f"ALiBi: a slope of {slopes}, which the host computes, gives at most {_most(found.slopes, reached)}"
    return Outcome(reached, ends, _stream(job), how)


def _most(slopes: Tensor, heads: Mapping[int, Reached]) -> str:
    """1 − e^(−slope): what the first of geometrically falling weights has of their sum."""
    return ", ".join(f"{1 - math.exp(-slopes[head].item()):.2f}" for head in heads)


def _first_that_suffices(
    job: Job, shares: Callable[[int, int, int, float], Shares], candidates: tuple[float, ...], least: float = 0.0
) -> tuple[float, dict[int, Reached], dict[int, int]]:
    """Return the first candidate by which every head gets its share, or that whose worst head gets most.

    With it strength and share of each head, and where those end that do not look clearly at the longest context.
    """
    best: tuple[float, dict[int, Reached]] | None = None
    for candidate in candidates:
        found = {
            head: least_strength(shares(head, key, offset[1], candidate)(job.length), job.target, least=least)
            for head, key, offset in job.heads
        }
        if best is None or _worst(found) > _worst(best[1]):
            best = candidate, found
        if _worst(found) >= job.target:
            break
    if best is None:
        raise StructuredInitError(f"PreviousToken: nothing to try for '{job.site.name}'")
    candidate, found = best
    ends = {
        head: reach(
            shares(head, key, offset[1], candidate), found[head].strength, job.length, CLEAR, shortest(offset[1])
        )
        for head, key, offset in job.heads
        if found[head].share < CLEAR
    }
    return candidate, found, ends


def shortest(offset: int) -> int:
    """The shortest context in which it means something to look at an offset."""
    return 2 * abs(offset) + 2


def _rms(vectors: Tensor) -> float:
    return vectors.square().mean().sqrt().item()


def _worst(found: Mapping[int, Reached]) -> float:
    return min(each.share for each in found.values())


def _stream(job: Job) -> float:
    stream = stream_into(job.site, job.weights)
    return 1.0 if stream.normalized else stream.rms

"""Heads that look at offsets: what is asked of a layer, how strong its logits must be, and what is written.

Letters: H heads, Hkv key heads, D embed_dim, k head_dim and width of a value, N tokens, Q queries. An offset is (rows
above, columns to the left); in a sequence (0, tokens before).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from structured_init.attention.stream_share import branches
from structured_init.draws import Draws
from structured_init.errors import StructuredInitError
from structured_init.hosts.attention import AttentionSite
from structured_init.hosts.attention_positions import AttentionPositions
from structured_init.hosts.layout import projection_bias
from structured_init.hosts.stream import norm_weight, stream_into
from structured_init.linalg import random_orthogonal
from structured_init.overlay import Weights

Kind = Literal["relative", "absolute", "rotary", "alibi"]
Offset = tuple[int, int]
Share = Callable[[float], float]  # of attention on the offset, as a function of the strength
Shares = Callable[[int], Share]  # context → share as a function of the strength
QUERIES = 96  # measured at the end of the context, where there is most to choose from
STEPS = 40  # of the search: strengths 2^(−8) to 2^(12) in steps of √2
BISECTIONS = 12
SUFFICIENT = 0.9  # of the largest share, where the target is out of reach


@dataclass(frozen=True)
class Layer:
    """What is asked for in one layer."""

    site: AttentionSite  # the layer, under the name of the writer
    positions: AttentionPositions  # those of its tokens
    kind: Kind  # those through which its heads look
    offsets: list[Offset | None]  # where each head looks, ``None`` for those left to the host
    causal: bool  # whether later tokens are hidden
    size: tuple[int, int]  # rows and columns of the tokens, (1, context) of a sequence
    target: float  # the share of attention asked for
    weights: Weights  # the overlay
    rng: Draws  # named generators
    reads: float = 1.0  # root mean square of what the layer reads, weights of the norm before it apart: 1 behind a norm
    # Of absolute positions, their root mean square over that of content; None for the least that suffices.
    gain: float | None = None
    written: bool = False  # whether absolute positions stay as they were written for a layer before, of that gain
    # How many coordinates absolute positions are to leave to content: the first number that they can.
    spare: Sequence[int] = ()

    def draw(self, part: str) -> torch.Generator:
        """Return the generator of a named part of this layer."""
        return self.rng.generator(self.site.name, f"PreviousToken: {part}")

    @property
    def length(self) -> int:
        """N, the number of tokens."""
        return self.size[0] * self.size[1]

    @property
    def group(self) -> int:
        """How many heads share a key."""
        return self.site.num_heads // self.site.num_key_value_heads

    @property
    def heads(self) -> Iterator[tuple[int, int, Offset]]:
        """Number, number of the key and offset of every head that is written."""
        return ((head, head // self.group, offset) for head, offset in enumerate(self.offsets) if offset is not None)

    @property
    def keys(self) -> list[int]:
        """Numbers of the keys of these heads."""
        return sorted({key for _, key, _ in self.heads})

    def through_norm(self, weight: Float64[Tensor, "*heads D k"]) -> Float64[Tensor, "*heads D k"]:
        """Return the weight that reads x̂ as the given one reads x̂/(γ·rms), of mean square 1; γ is the norm's before."""
        gamma, weight = norm_weight(self.site, self.weights), weight / self.reads
        return weight if gamma is None else weight / gamma.where(gamma.abs() > 1e-3, 1)[:, None]

    def content(self, *, biased: bool) -> tuple[Float[Tensor, "heads N k"], Float[Tensor, "kv_heads N k"]]:
        """Return the host's own queries (H, N, k) and keys (Hkv, N, k) of unrelated tokens of mean square 1."""
        site = self.site
        tokens = torch.randn(self.length, site.embed_dim, dtype=torch.float64, generator=self.draw("content"))
        gamma = norm_weight(site, self.weights)
        tokens = tokens if gamma is None else tokens * gamma
        vectors = []
        for projection, weight in ((site.layout.query, site.query), (site.layout.key, site.key)):
            vectors.append(tokens @ weight.double())
            bias = projection_bias(site.module, projection)
            if biased and bias is not None:
                vectors[-1] += bias.get(self.weights).double()[:, None]
        return vectors[0], vectors[1]


class Reached(NamedTuple):
    """A strength and the share of attention that it gives."""

    strength: float
    share: float


@dataclass(frozen=True)
class Outcome:
    """What was reached in one layer."""

    reached: dict[int, Reached]  # strength and share of each head that was written
    predicted: Callable[[int, int], float]  # head and a number of tokens, N or fewer → the share at their end
    how: str  # what the report says besides
    free: Tensor | None = None  # coordinates that positions leave to content, where some were to be spared
    gain: float | None = None  # of absolute positions that were written
    reads: float = 1.0  # as in ``Layer``, as it was seen
    stream: float | None = None  # with those, the root mean square of what attention's branch is added to


def last_queries(length: int, offset: int) -> Int[Tensor, " queries"]:
    """The last tokens of a context that have a token at the offset, in the last half and at most ``QUERIES``."""
    inside = torch.arange(max(offset, 0), max(offset, 0, min(length, length + offset)))
    return inside[-max(min(QUERIES, (length + 1) // 2), 1) :]


def visible(queries: Int[Tensor, " queries"], length: int, *, causal: bool) -> Bool[Tensor, "queries tokens"]:
    """Which keys each query sees: under a causal mask those up to itself."""
    keys = torch.arange(length)
    return keys <= queries[:, None] if causal else torch.ones(len(queries), length, dtype=torch.bool)


def mean_share(
    logits: Float[Tensor, "*contents queries tokens"],
    targets: Int[Tensor, " queries"],
    seen: Bool[Tensor, "queries tokens"],
) -> float:
    """The attention that queries put on their targets, on average."""
    probability = logits.masked_fill(~seen, -math.inf).softmax(dim=-1)
    return probability[..., torch.arange(len(targets)), targets].mean().item()


def least_strength(share: Share, target: float, sufficient: float = SUFFICIENT, least: float = 0.0) -> Reached:
    """Return the least strength from ``least`` on that gives the target share, between 0 and 1.

    Where none does, it is the least that gives a sufficient part of the largest share: beyond, each head looks at one
    token alone, the right one or not, and training could not change it. Shares rise up to where they are largest.
    """
    tried = [Reached(least, share(least))]
    for step in range(STEPS + 1):
        if tried[-1].share >= target:
            break
        strength = 2.0 ** (step / 2 - 8)
        if strength <= least:
            continue
        tried.append(Reached(strength, share(strength)))
    if tried[-1].share < target:
        target = sufficient * max(each.share for each in tried)
    first = next((place for place, each in enumerate(tried) if each.share >= target), None)
    if first is None:
        raise StructuredInitError("attention gives no numbers: the model's weights, or the batch, are not finite")
    high = tried[first]
    if first:
        low = tried[first - 1].strength
        for _ in range(BISECTIONS):
            middle = (low + high.strength) / 2
            reached = Reached(middle, share(middle))
            low, high = (low, reached) if reached.share >= target else (middle, high)
    return high


def first_that_suffices(
    layer: Layer, shares: Callable[[int, int, int, float], Shares], candidates: tuple[float, ...], least: float = 0.0
) -> tuple[float, dict[int, Reached], Callable[..., float]]:
    """Return the first candidate by which every head gets its share, or that whose worst head gets most.

    With it strength and share of each head, and its share at the end of fewer tokens, with its strength or so many
    times it.
    """
    best: tuple[float, float, dict[int, Reached]] | None = None
    for candidate in candidates:
        found = {
            head: least_strength(shares(head, key, offset[1], candidate)(layer.length), layer.target, least=least)
            for head, key, offset in layer.heads
        }
        worst = min(each.share for each in found.values())
        if best is None or worst > best[0]:
            best = worst, candidate, found
        if worst >= layer.target:
            break
    assert best is not None, "there is a candidate"
    _, candidate, found = best
    of_head = {head: shares(head, key, offset[1], candidate) for head, key, offset in layer.heads}
    return candidate, found, lambda head, length, times=1.0: of_head[head](length)(times * found[head].strength)


def write_product(
    layer: Layer,
    strengths: Mapping[int, float],
    query_of: Callable[[int, int, Offset], Float64[Tensor, "D k"]],
    key_of: Callable[[int], Float64[Tensor, "D k"]],
) -> None:
    """Write W_q and W_k of unit strength such that each head's product has the strength asked for.

    Heads that share a key share it at their mean strength, and their queries have the rest.
    """
    site = layer.site
    query, key = site.query.double(), site.key.double()
    amplitudes = shared_amplitudes(layer, strengths)
    for number in layer.keys:
        key[number] = amplitudes[number] * layer.through_norm(key_of(number))
    for head, number, offset in layer.heads:
        amplitude = strengths[head] / amplitudes[number] if amplitudes[number] else 0.0
        query[head] = amplitude * layer.through_norm(query_of(head, number, offset))
    site.query, site.key = query, key


def shared_amplitudes(layer: Layer, strengths: Mapping[int, float]) -> dict[int, float]:
    """Return, for each key, the root of the mean strength of the heads that share it."""
    groups = {key: [strengths[head] for head, own, _ in layer.heads if own == key] for key in layer.keys}
    return {key: math.sqrt(sum(each) / len(each)) for key, each in groups.items()}


def normed(layer: Layer, vectors: Float[Tensor, "tokens k"]) -> Float[Tensor, "tokens k"]:
    """Return queries or keys as the host's norm leaves them, of root mean square 1; unchanged where it has none."""
    if not layer.site.layout.query_key_norm:
        return vectors
    return vectors / vectors.square().mean(dim=-1, keepdim=True).sqrt().clamp(min=1e-6)


def stream_size(layer: Layer) -> float:
    """Return the root mean square of what attention's branch is added to: in a pass, or else computed."""
    try:
        return branches(layer.weights, [layer.site], 1.0, scaled=False)[layer.site.name].stream
    except StructuredInitError:  # it does not run there, or its output is not seen to be added to anything
        stream = stream_into(layer.site, layer.weights)
        return 1.0 if stream.normalized else stream.rms


def copying_subspaces(
    embed_dim: int, width: int, sources: Sequence[int], free: Tensor | None = None, *, generator: torch.Generator
) -> tuple[dict[int, Float64[Tensor, "D k"]], list[Float64[Tensor, "k D"]]]:
    """Return V of each value, which heads read, and O of each head, into which it writes: orthonormal columns and rows.

    All are orthogonal while there is room. Where there is none, a value is read from where heads of other values write,
    so that none reads from where it writes; and beyond H·k = D, or where all heads have one value, they are drawn anew.
    ``sources`` has the number of the value of each head that copies. In ``free`` coordinates, those without positions,
    V lies where they suffice, and O too, or else beside them.
    """
    values = sorted(set(sources))
    if free is not None and len(free) >= width * len(values):
        inside = len(values) + (len(sources) if len(free) >= width * (len(values) + len(sources)) else 0)
        blocks = _within(embed_dim, free, width * inside, generator).split(width, dim=1)
        beside = torch.ones(embed_dim, dtype=torch.bool)
        beside[free] = False
        if inside == len(values) and width * len(sources) <= int(beside.sum()):
            blocks += _within(embed_dim, beside.nonzero()[:, 0], width * len(sources), generator).split(width, dim=1)
        elif inside == len(values):
            return copying_subspaces(embed_dim, width, sources, generator=generator)
        return dict(zip(values, blocks, strict=False)), [block.mT for block in blocks[len(values) :]]
    room = max(embed_dim // width, 1)
    blocks: list[Tensor] = []
    while len(blocks) < len(sources) + len(values):
        basis = random_orthogonal(embed_dim, min(room * width, embed_dim), generator=generator)
        blocks.extend(basis.split(width, dim=1)[:room])
    write, spare = blocks[: len(sources)], iter(blocks[len(sources) :])
    read = {}
    for value in values:
        others = [block for block, source in zip(write, sources, strict=True) if source > value]
        others += [block for block, source in zip(write, sources, strict=True) if source < value]
        crowded = len(sources) + len(values) > room and bool(others)
        read[value] = others[0] if crowded else next(spare)
    return read, [block.mT for block in write]


def _within(embed_dim: int, coordinates: Tensor, columns: int, generator: torch.Generator) -> Tensor:
    """Draw orthonormal columns (D, columns) that are zero but in some coordinates."""
    drawn = torch.zeros(embed_dim, columns, dtype=torch.float64)
    drawn[coordinates] = random_orthogonal(len(coordinates), columns, generator=generator)
    return drawn


def write_copies(layer: Layer, scale: float, outcome: Outcome) -> tuple[dict[int, Tensor], dict[int, Tensor], float]:
    """Write values and outputs of the heads that look at offsets: W_v = V, W_o = scale · stream · O.

    What is seen has mean square 1 after the norm, so with a scale of 1 the copy is as large, in each coordinate of its
    subspace, as the stream is. Return V by the number of the value, O by the number of the head, and
    scale · stream.
    """
    layer, site = replace(layer, reads=outcome.reads), layer.site.by("PreviousToken: value_output")
    value, output = site.value.double(), site.output.double()
    heads = [head for head, _, _ in layer.heads]
    group = len(output) // len(value)
    sources = [head // group for head in heads]
    draw = layer.draw("subspaces")
    read, blocks = copying_subspaces(site.embed_dim, value.shape[-1], sources, outcome.free, generator=draw)
    write, size = dict(zip(heads, blocks, strict=True)), scale * (outcome.stream or stream_size(layer))
    for head, source in zip(heads, sources, strict=True):
        value[source] = layer.through_norm(read[source])
        output[head] = size * write[head]
    site.value, site.output = value, output
    site.note_value_output()
    return read, write, size

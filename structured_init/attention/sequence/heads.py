"""Heads that look at offsets: what is asked of a layer, the search for their strengths, and what the report says.

A kind of positions (``absolute.py``, ``rotary.py``, ``biases.py``) says what to write for a strength. The layer's call
is repeated while strengths are searched on the attention that it shows.

Letters: H heads, D embed_dim, k head_dim, N tokens. Row vectors: q = x̂ W_q with W_q (D, k), x̂ what attention reads. An
offset is (rows above, columns to the left); in a sequence (0, tokens before).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from structured_init.attention.sequence.recorded import (
    LayerCall,
    Trial,
    keys_at_offset,
    measure_shares,
    record_call,
)
from structured_init.hosts.attention import AttentionSite
from structured_init.hosts.attention_positions import AttentionPositions
from structured_init.hosts.stream import norm_weight
from structured_init.util.draws import Draws
from structured_init.util.errors import StructuredInitError
from structured_init.weights import Weights

Kind = Literal["relative", "absolute", "rotary", "alibi"]
Offset = tuple[int, int]
ShareOf = Callable[[Float64[Tensor, " heads"]], Float64[Tensor, " heads"]]  # strengths → shares
FIRST, DOUBLINGS, HALVINGS = 8.0, 10, 5  # of the search for strengths, which are logits
GROWS = 1.02  # times the largest share before
SUFFICIENT = 0.9  # of the largest share, where that asked for is out of reach
NEAR = 0.005  # of the share asked for: no reason to try the next candidate


@dataclass
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
    trial: Trial  # what the network is run on

    def draw(self, part: str) -> torch.Generator:
        """Return the generator of a named part of this layer."""
        return self.rng.generator(self.site.name, f"PreviousToken: {part}")

    @property
    def group(self) -> int:
        """How many heads share a key."""
        return self.site.num_heads // self.site.num_key_value_heads

    @property
    def looking(self) -> dict[int, Offset]:
        """The heads that are written, and their offsets."""
        return {head: offset for head, offset in enumerate(self.offsets) if offset is not None}

    @property
    def keys(self) -> list[int]:
        """Numbers of the keys of these heads."""
        return sorted({head // self.group for head in self.looking})


class Heads:
    """The heads of one layer that are to look at offsets; each kind of positions says how they are written.

    Attributes:
        candidates: of what may be varied beside the strengths, in the order in which they are wanted.
        sufficient: which part of the largest share is enough where that asked for is out of reach.
        first: the strength with which the search begins.
        grows: times the largest share before, what a larger strength gives at least, for the search to go on.
        how: what the report says of what was written.
        free: coordinates that positions leave to values and outputs.
    """

    candidates: Sequence[float] = (1.0,)
    sufficient: float = SUFFICIENT
    first: float = FIRST
    grows: float = GROWS
    how: str = ""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self.site, self.weights, self.positions = layer.site, layer.weights, layer.positions
        self.free: Int[Tensor, " free"] = torch.arange(0)
        self.reads = 1.0  # root mean square of x̂/γ: 1 behind a norm
        self.host_query, self.host_key = self.site.query.double(), self.site.key.double()
        self.call = record_call(self.weights, self.site, layer.trial, self.written_tensors())
        self.call.find_heads()

    def written_tensors(self) -> list[Tensor]:
        """Return what is written while strengths are searched, beside the matrices of the layer."""
        return []

    def record(self) -> LayerCall:
        """Run the network as it is now, up to this layer."""
        places = self.call.places
        self.call = record_call(self.weights, self.site, self.layer.trial, self.written_tensors())
        self.call.places = places
        return self.call

    def prepare(self, candidate: float) -> None:
        """Take one of the candidates."""

    def write(self, strengths: Float64[Tensor, " heads"]) -> None:
        """Give each head that looks at an offset a strength, in logits.

        Heads that share a key share it at their mean strength, and their queries have the rest.
        """
        query, key = self.host_query.clone(), self.host_key.clone()
        strengths = strengths / self.site.scale
        heads = list(self.layer.looking)
        of_key = torch.tensor([head // self.layer.group for head in heads])
        for number in self.layer.keys:
            amplitude = strengths[of_key == number].mean().sqrt()
            key[number] = amplitude * self.key_direction(number)
            for place in (of_key == number).nonzero()[:, 0].tolist():
                factor = strengths[place] / amplitude.clamp(min=1e-12)
                query[heads[place]] = factor * self.query_direction(heads[place])
        self.site.query, self.site.key = query, key

    def query_direction(self, head: int) -> Float64[Tensor, "D k"]:
        """Return W_q of a head for a strength of 1 · scale."""
        raise NotImplementedError

    def key_direction(self, key: int) -> Float64[Tensor, "D k"]:
        """Return W_k of a key for a strength of 1 · scale."""
        raise NotImplementedError

    def through_norm(self, weight: Float64[Tensor, "D k"]) -> Float64[Tensor, "D k"]:
        """Return the weight that reads x̂ as the given one reads x̂/(γ·rms), of mean square 1; γ is the norm's before."""
        gamma, weight = norm_weight(self.site, self.weights), weight / self.reads
        return weight if gamma is None else weight / gamma.where(gamma.abs() > 1e-3, 1)[:, None]

    def measure_reads(self) -> None:
        """Take note of how large what the layer reads is, weights of the norm before it apart."""
        read, gamma = self.call.read(), norm_weight(self.site, self.weights)
        if read is None:
            return
        seen = read if gamma is None else read / gamma.where(gamma.abs() > 1e-3, 1)
        size = seen.square().mean().sqrt().item()
        self.reads = size or 1.0


class Tried(NamedTuple):
    """The strengths that were tried, one after the other, and the shares of attention that they gave."""

    strengths: Float64[Tensor, "tried heads"]
    shares: Float64[Tensor, "tried heads"]

    @property
    def worst(self) -> float:
        """The largest share of the head for which that is least."""
        return self.shares.amax(dim=0).min().item()


def try_strengths(share_of: ShareOf, heads: int, share: float, first: float = FIRST, grows: float = GROWS) -> Tried:
    """Double the strengths of several heads until each has had the share, or none gains any more."""
    strengths: list[Tensor] = []
    shares: list[Tensor] = []
    best = torch.zeros(heads, dtype=torch.float64)
    for step in range(DOUBLINGS):
        strengths.append(torch.full((heads,), first * 2.0**step, dtype=torch.float64))
        found = share_of(strengths[-1])
        if not found.isfinite().all():
            raise StructuredInitError("attention gives no numbers: the model's weights, or the batch, are not finite")
        shares.append(found)
        stays = found <= grows * best
        best = torch.maximum(best, found)
        if ((best >= share) | stays).all():
            break
    return Tried(torch.stack(strengths), torch.stack(shares))


def bisect_strengths(share_of: ShareOf, tried: Tried, share: float, sufficient: float = SUFFICIENT) -> Tensor:
    """Return the least strengths that give each head the share.

    Where none does, it is the least that gives a sufficient part of the largest share: beyond, a head looks at one
    token alone, the right one or not, and training could not change it.
    """
    best = tried.shares.amax(dim=0)
    wanted = torch.where(best >= share, share, sufficient * best)
    first = (tried.shares >= wanted).int().argmax(dim=0)
    below = torch.cat([torch.zeros_like(tried.strengths[:1]), tried.strengths])
    high = tried.strengths.gather(0, first[None])[0]
    low = below.gather(0, first[None])[0]
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        enough = share_of(middle) >= wanted
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    return high


@dataclass
class Outcome:
    """What the heads of one layer have, measured in the network."""

    shares: dict[int, float]  # head → share of attention on its offset; heads without one at theirs are left out
    length: int  # tokens of the longest text, padding apart
    on: str  # what the network was run on
    how: str  # what else the report says
    hidden: list[int]  # heads whose offset a mask hides


def look_at_offsets(heads: Heads) -> Outcome:
    """Write the heads of a layer with the first candidate that suffices, or the best, and measure them."""
    layer, wanted, length = heads.layer, {}, 0
    prefix = layer.site.prefix_tokens
    for head, offset in layer.looking.items():
        if head in heads.call.places:
            wanted[head], length = keys_at_offset(heads.call.places[head], prefix, layer.size, offset)
    searched = list(layer.looking)
    seen = [searched.index(head) for head in wanted]

    def share_of(strengths: Tensor) -> Tensor:
        heads.write(strengths)
        shares = torch.ones_like(strengths)
        shares[seen] = measure_shares(heads.call, wanted)
        return shares

    best: tuple[float, float, Tried] | None = None
    candidate = 0.0
    for candidate in heads.candidates:
        heads.prepare(candidate)
        tried = try_strengths(share_of, len(searched), layer.target, heads.first, heads.grows)
        if best is None or tried.worst > best[0] + NEAR:
            best = tried.worst, candidate, tried
        if tried.worst >= layer.target - NEAR:
            break
    assert best is not None, "there is a candidate"
    if best[1] != candidate:
        heads.prepare(best[1])
    strengths = bisect_strengths(share_of, best[2], layer.target, heads.sufficient)
    shares = share_of(strengths).tolist()
    measured = {head: shares[searched.index(head)] for head in wanted if wanted[head].asked}
    hidden = [head for head in wanted if wanted[head].hidden]
    return Outcome(measured, length, layer.trial.on, heads.how, hidden)


def report_outcome(layer: Layer, outcome: Outcome, more: str = "") -> None:
    """Note the shares of a layer, and warn of small ones."""
    looking: dict[str, dict[str, str]] = {}  # where heads look → head → its share
    for head, (up, back) in layer.looking.items():
        far = f"{abs(back)} token{'s' * (abs(back) > 1)} {'back' if back > 0 else 'ahead'}"
        where = f"[{up}, {back}] up and left" if up else far
        share = f"{outcome.shares[head]:.2f}" if head in outcome.shares else "no token has one there"
        looking.setdefault(where, {})[str(head)] = share
    parts = []
    for where, of in looking.items():
        verb = "head" + "s" * (len(of) > 1) + f" {', '.join(of)} look" + "s" * (len(of) == 1)
        parts.append(f"{verb} {where}: {', '.join(of.values())}")
    how = f" ({'; '.join(filter(None, (f'on {outcome.on}', outcome.how)))}){more}"
    said = f"attention on offsets at the end of {outcome.length:,} tokens, measured: "
    layer.site.note(said + ", ".join(parts) + how)
    short = [head for head, share in outcome.shares.items() if share < layer.target / 2]
    if short:
        shares = ", ".join(f"{outcome.shares[head]:.2f}" for head in short)
        who = name_heads(short, layer.site.name)
        why = explain_shortfall(layer, outcome, short)
        layer.weights.fall_short(f"{who} {shares} of attention on offsets, of {layer.target:g} asked for: {why}")


def explain_shortfall(layer: Layer, outcome: Outcome, short: Sequence[int]) -> str:
    """Say what stands in the way of some heads, and a remedy."""
    table = layer.positions.absolute
    if layer.site.layout.mixes_heads:
        return "the host mixes its heads, so no head has a map of its own; choose a layer that does not (where=)"
    if set(short) <= set(outcome.hidden):
        return "its mask hides the tokens at their offsets; ask for nearer ones, or the other way (offsets=)"
    if table is not None and table.num_tokens < outcome.length:
        return f"'{table.name}' has {table.num_tokens:,} rows for {outcome.length:,} tokens"
    if layer.kind == "alibi":
        return "the slopes of ALiBi give no more; leave these heads to the host (null in offsets=)"
    bound = f"{layer.site.head_dim} dimensions of a head tell so few of {outcome.length:,} tokens apart"
    if layer.site.layout.query_key_norm:
        bound = "the norms of queries and keys bound its logits"
    return f"{bound}; where your texts are shorter, set context= to their length"


def name_heads(heads: Sequence[int], name: str) -> str:
    """Return the beginning of a sentence: ``"head 1 of 'attn' has"``, or ``"heads 1, 2 of 'attn' have"``."""
    several = len(heads) > 1
    return f"head{'s' * several} {', '.join(map(str, heads))} of '{name}' {'have' if several else 'has'}"

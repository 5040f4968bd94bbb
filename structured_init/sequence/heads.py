"""Heads that look at offsets: the search for their strengths, and what the report says.

A kind of positions (here, ``absolute.py``, ``rotary.py``) says what to write for a strength. The layer's call is
repeated while strengths are searched on the attention that it shows.

Letters: H heads, D embed_dim, k head_dim, v value width. Row vectors: q = x̂ W_q with W_q (D, k), x̂ what attention
reads. An offset is (rows above, columns to the left); in a sequence (0, tokens before).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from structured_init.sequence.layer import Layer
from structured_init.sequence.recorded import (
    Looks,
    find_maps,
    find_tokens,
    keys_at_offset,
    measure_shares,
    record_call,
    repeat_call,
)
from structured_init.util.errors import StructuredInitError

Strengths = Float64[Tensor, " heads"]  # in logits, of the heads that are written
FIRST, DOUBLINGS, HALVINGS = 16.0, 9, 4  # of the search for strengths
GROWS = 1.02  # times the largest share before
SUFFICIENT = 0.9  # of the largest share, where that asked for is out of reach
NEAR = 0.005  # of the share asked for: no reason to try the next candidate
WHY_SHORT = (
    "norms of queries and keys bound its logits, a mask hides these tokens, or its heads are too narrow to tell so many"
    " apart; where your texts are shorter, set context= to their length"
)


class Heads:
    """The heads of one layer that are to look somewhere; each kind of positions says how they are written.

    Attributes:
        candidates: of what may be varied beside the strengths, in the order in which they are wanted.
        better: by how much a later candidate has to raise the share.
        sufficient: which part of the largest share is enough where that asked for is out of reach.
        first: the strength with which the search begins.
        grows: times the largest share before, what a larger strength gives at least, for the search to go on.
        how: what the report says of what was written.
        free: coordinates that positions leave to values and outputs.
        call: the layer's call as last recorded.
        read: x̂ of all tokens in it, (T, D).
        reads: root mean square of x̂, 1 behind a norm.
        real: which tokens are no padding, those before a grid apart.
        wanted: where in its maps each head is to look.
        shares: what each head has in the end, measured in the network.
    """

    candidates: Sequence[Any] = (1.0,)
    better: float = NEAR
    sufficient: float = SUFFICIENT
    first: float = FIRST
    grows: float = GROWS
    how: str = ""
    shares: dict[int, float]

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self.site, self.weights, self.positions = layer.site, layer.weights, layer.positions
        self.free: Int[Tensor, " free"] = torch.arange(0)
        self.host_query, self.host_key = self.site.query.double(), self.site.key.double()
        self.record()
        self.places = find_maps(self.site, self.call)
        self.real = find_tokens(layer, self.call, self.places)
        self.wanted = self.choose_places()

    def choose_places(self) -> dict[int, Looks]:
        """Return where in its maps each head is to look."""
        looking = self.layer.looking.items()
        return {head: keys_at_offset(self.real, self.layer.size, offset) for head, offset in looking}

    def record(self, *needs: Tensor) -> None:
        """Run the network as it is now, up to this layer, whose call ``needs`` some tensors; note what it reads."""
        self.call, self.read = record_call(self.layer, needs)
        self.reads = self.read.square().mean().sqrt().item() or 1.0

    def prepare(self, candidate: Any) -> None:
        """Take one of the candidates."""

    def write(self, strengths: Strengths) -> None:
        """Give each head a strength. Heads that share a key share it at their mean strength; queries have the rest.

        Matrices that stay as they are do not count as written.
        """
        self.query, self.key = self.host_query.clone(), self.host_key.clone()
        strengths = strengths / self.site.scale
        heads = list(self.layer.looking)
        of_key = torch.tensor(heads) // self.layer.group
        for key in self.layer.keys:
            amplitude = strengths[of_key == key].mean().sqrt()
            self.write_key(key, amplitude)
            for place in (of_key == key).nonzero()[:, 0].tolist():
                self.write_query(heads[place], strengths[place] / amplitude.clamp(min=1e-12))
        if not (self.query.equal(self.site.query.double()) and self.key.equal(self.site.key.double())):
            self.site.query, self.site.key = self.query, self.key

    def write_query(self, head: int, factor: Tensor) -> None:
        """Write W_q of a head into ``query``, so many times that for a strength of 1 · scale."""
        raise NotImplementedError

    def write_key(self, key: int, factor: Tensor) -> None:
        """Write W_k of a key into ``key``, so many times that for a strength of 1 · scale."""
        raise NotImplementedError

    def write_values(self, reads: Float64[Tensor, "D v"], writes: Float64[Tensor, "D v"], by: str) -> None:
        """Write W_v = ``reads``, of what has mean square 1 after the norm, and W_o = ``writes``ᵀ of a single head."""
        site = self.site.by(by)
        [head] = self.layer.looking
        value, output = site.value.double(), site.output.double()
        value[head // self.layer.group] = reads / self.reads
        output[head] = writes.mT
        site.value, site.output = value, output
        site.note_value_output()

    def share_of(self, strengths: Strengths) -> Float64[Tensor, " heads"]:
        """Write strengths and measure what they give."""
        self.write(strengths)
        maps = repeat_call(self.weights, self.call, self.places)
        return measure_shares(maps, self.wanted, self.site.prefix_tokens)

    def search(self) -> None:
        """Write heads with the first candidate that suffices, or the best, and the least strengths that do.

        Where the share is out of reach, these are the least that give a sufficient part of the largest: beyond, a head
        looks at one token alone, the right one or not, and training could not change it.
        """
        target = self.layer.target
        highest, chosen, candidate = -torch.inf, None, None
        for candidate in self.candidates:
            self.prepare(candidate)
            tried = self.try_strengths()
            worst = tried[1].amax(dim=0).min().item()
            if worst > highest + self.better:
                highest, chosen, (strengths, shares) = worst, candidate, tried
            if worst >= target - NEAR:
                break
        if chosen != candidate:
            self.prepare(chosen)
        most = shares.amax(dim=0)
        wanted = torch.where(most >= target, target, self.sufficient * most)
        first = (shares >= wanted).int().argmax(dim=0)
        high = strengths[first]
        low = torch.where(first == 0, 0, high / 2)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            enough = self.share_of(middle) >= wanted
            low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
        self.shares = dict(zip(self.wanted, self.share_of(high).tolist(), strict=True))

    def try_strengths(self) -> tuple[Float64[Tensor, " tried"], Float64[Tensor, "tried heads"]]:
        """Double the strength until each head has had the share, or none gains any more; return them and the shares."""
        shares: list[Tensor] = []
        best = torch.zeros(len(self.wanted), dtype=torch.float64)
        strengths = self.first * 2.0 ** torch.arange(DOUBLINGS, dtype=torch.float64)
        for strength in strengths:
            found = self.share_of(strength.expand_as(best))
            if not found.isfinite().all():
                raise StructuredInitError(
                    f"'{self.site.name}' attends with no numbers: the model's weights, or the batch, are not finite"
                )
            shares.append(found)
            stays = found <= self.grows * best
            best = torch.maximum(best, found)
            if ((best >= self.layer.target) | stays).all():
                break
        return strengths[: len(shares)], torch.stack(shares)

    def report(self, more: str = "") -> None:
        """Note where each head looks and how much, and warn of small shares."""
        parts = []
        for head, (up, left) in self.layer.looking.items():
            where = f"[{up}, {left}] up and left"
            if not up:
                where = f"{abs(left)} token{'s' * (abs(left) > 1)} {'back' if left > 0 else 'ahead'}"
            parts.append(f"head {head} looks {where}: {self.shares[head]:.2f}")
        how = f" (on {self.layer.trial.on}; {self.how}){more}"
        self.site.note(f"attention on offsets at the end of {self.length:,} tokens, measured: {', '.join(parts)}{how}")
        self.warn_of_short("on offsets")

    def warn_of_short(self, where: str) -> None:
        """Warn of the heads that have less than half of the share asked for."""
        target = self.layer.target
        short = []
        for head, share in self.shares.items():
            if share < target / 2:
                short.append(f"head {head} of '{self.site.name}' has {share:.2f}")
        if short:
            self.weights.fall_short(f"{'; '.join(short)} of attention {where}, of {target:g} asked for: {WHY_SHORT}")

    @property
    def length(self) -> int:
        """How many tokens the longest text has, padding apart."""
        return int(self.real.sum(dim=1).max())


class RelativeHeads(Heads):
    """The entry of each head for its offset is its strength; queries and keys stay the host's."""

    def record(self, *needs: Tensor) -> None:
        super().record(self.positions.relative.table, *needs)

    def prepare(self, candidate: float) -> None:
        shared = ", which other layers read as well" if self.positions.relative.shared else ""
        self.how = f"a table of relative positions{shared}"

    def write(self, strengths: Strengths) -> None:
        biases = self.positions.relative
        for (head, offset), strength in zip(self.layer.looking.items(), strengths.tolist(), strict=True):
            biases.set(self.weights, head, offset, strength, "PreviousToken: relative positions")

"""The second half of induction: heads that find the token after an earlier occurrence of the present one.

Letters: D embed_dim, k head_dim, v value width, c coordinates of a head that match, T tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int
from torch import Tensor
from torch.utils._pytree import tree_leaves

from structured_init.attention.sequence.copies import Subspaces
from structured_init.attention.sequence.heads import Heads, Tried, bisect_strengths, try_strengths
from structured_init.attention.sequence.recorded import Wanted, keys_behind_equals, measure_shares
from structured_init.inputs import numbered
from structured_init.util.errors import StructuredInitError

SLOW = 1.0  # radians by which a pair that matches may be turned over the whole context


def matching_coordinates(heads: Heads, length: int) -> Int[Tensor, " c"]:
    """Return the coordinates of a head that can match tokens over all distances, the best first.

    All of them, but under rotary positions those of no pair, and of pairs that turn by less than ``SLOW`` over the
    context, the slowest first; where there are fewer than four, those of the two slowest pairs.
    """
    rotary, head_dim = heads.positions.rotary, heads.site.head_dim
    if rotary is None:
        return torch.arange(head_dim)
    slow = int((rotary.frequencies * length < SLOW).sum())
    order = rotary.frequencies.argsort()[: max(slow, 2)]
    unturned = torch.ones(head_dim, dtype=torch.bool)
    unturned[rotary.pairs.flatten()] = False
    return torch.cat([unturned.nonzero()[:, 0], rotary.pairs[order].flatten()])


@dataclass
class Circuit:
    """One head that matches: its number and that of its key, and the subspaces of the head whose copies it finds."""

    head: int
    key: int
    read: Float64[Tensor, "D v"]
    write: Float64[Tensor, "D v"]


class MatchingHeads(Heads):
    """Heads that hold the present token against copies of what stood before: W_q = √m V R and W_k = √m O R.

    R (v, c) has orthonormal columns beside the means of x̂ V and x̂ O over all tokens. What is common to all tokens, such
    as a direction that was added to their embeddings and what the network answers to it, would be the largest part of
    queries and keys, and tell nothing.
    """

    circuits: list[Circuit]
    sufficient = 0.95  # of what a head can tell apart: what is lost here is lost for what the circuit predicts

    def attach(self, copying: list[tuple[int, int]], read: Subspaces, write: Subspaces) -> None:
        """Take over the heads that copy, as (head, value): each is matched by one of the heads of this layer."""
        group = self.layer.group
        self.circuits = []
        for head, (copy, value) in zip(self.layer.looking, copying, strict=True):
            self.circuits.append(Circuit(head, head // group, read[value], write[copy]))
        self.coordinates = matching_coordinates(self, self.layer.size[1])
        self.wanted = {each.head: self._find_equals(each.head) for each in self.circuits}
        self.hidden = any(wanted.hidden for wanted in self.wanted.values())

    def _find_equals(self, head: int) -> Wanted:
        """Return where a head is to look."""
        if head not in self.call.places:
            raise StructuredInitError(f"Induction: the maps of head {head} of '{self.site.name}' were not seen")
        place = self.call.places[head]
        tokens = place.real.shape[1] - self.site.prefix_tokens
        for leaf in tree_leaves(self.layer.trial.inputs):
            fits = numbered(leaf) and leaf.shape == (len(place.entries), tokens)
            if fits and leaf.max() > 1:  # else it is a mask
                return keys_behind_equals(place, self.site.prefix_tokens, leaf.cpu())
        raise StructuredInitError(f"Induction: what '{self.site.name}' reads is no text that the model was given")

    def read_network(self) -> None:
        """Run the network up to this layer, as it is now, and choose R by what the layer reads."""
        read = self.record().read()
        if read is None:
            raise StructuredInitError(f"Induction: what '{self.site.name}' reads is not seen")
        self.measure_reads()
        self.match = {}
        for each in self.circuits:
            query, key = self.through_norm(each.read), self.through_norm(each.write)
            means = torch.stack([(read @ query).mean(dim=0), (read @ key).mean(dim=0)], dim=1)
            basis = torch.linalg.qr(torch.cat([means, torch.eye(len(means), dtype=means.dtype)], dim=1)).Q[:, 2:]
            used = self.coordinates[: basis.shape[1]]
            pair = torch.zeros(2, self.site.embed_dim, self.site.head_dim, dtype=torch.float64)
            pair[0][:, used] = query @ basis[:, : len(used)]
            pair[1][:, used] = key @ basis[:, : len(used)]
            self.match[each.head] = pair / math.sqrt(len(used))
            self.used = len(used)

    def write(self, strengths: Float64[Tensor, " heads"]) -> None:
        """Give each head that matches a strength: the logit of a token that fills its subspace."""
        query, key = self.host_query.clone(), self.host_key.clone()
        for each, strength in zip(self.circuits, strengths.tolist(), strict=True):
            amplitude = math.sqrt(strength / self.site.scale)
            query[each.head], key[each.key] = amplitude * self.match[each.head]
        self.site.query, self.site.key = query, key

    def share_of(self, strengths: Float64[Tensor, " heads"]) -> Float64[Tensor, " heads"]:
        """Write strengths and measure the attention on what followed an equal token."""
        self.write(strengths)
        return measure_shares(self.call, self.wanted)

    def try_strengths(self) -> Tried:
        """Try strengths on what the network computes now."""
        self.read_network()
        return try_strengths(self.share_of, len(self.circuits), self.layer.target)

    def settle(self, tried: Tried) -> dict[int, float]:
        """Write the least strengths that suffice; return head → share."""
        strengths = bisect_strengths(self.share_of, tried, self.layer.target, self.sufficient)
        return dict(zip(self.wanted, self.share_of(strengths).tolist(), strict=True))

    def pass_on(self, size: float) -> None:
        """Write values and outputs that pass on what a head sees, W_v = U and W_o = size · Uᵀ, U beside O."""
        value, output = self.site.value.double(), self.site.output.double()
        for each in self.circuits:
            draw = self.layer.draw(f"passed {each.head}")
            passed = draw_beside(each.write, value.shape[-1], generator=draw)
            value[each.key] = self.through_norm(passed)
            output[each.head] = size * passed.mT
        self.site.value, self.site.output = value, output
        self.site.note_value_output()


def draw_beside(taken: Float64[Tensor, "D v"], width: int, *, generator: torch.Generator) -> Float64[Tensor, "D width"]:
    """Draw orthonormal directions beside some others, as far as there is room."""
    dim, others = taken.shape
    drawn = torch.randn(dim, width, dtype=torch.float64, generator=generator)
    if width + others <= dim:
        drawn = drawn - taken @ (taken.mT @ drawn)
    return torch.linalg.qr(drawn).Q

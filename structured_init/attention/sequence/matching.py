"""The second half of induction: heads that find the token after an earlier occurrence of the present one.

Letters: D embed_dim, k head_dim, v value width, c coordinates of a head that match.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from structured_init.attention.sequence.balance import Balance, Factors
from structured_init.attention.sequence.copies import Subspaces
from structured_init.attention.sequence.heads import Heads, Layer
from structured_init.attention.sequence.recorded import Wanted, keys_behind_equals, texts_in
from structured_init.util.errors import StructuredInitError

SLOW = 1.0  # radians by which a pair that matches may be turned over the whole context


class MatchingHeads(Heads):
    """Heads that hold the present token against copies of what stood before: W_q = √m V R and W_k = √m O R.

    R (v, c) has orthonormal columns beside the means of x̂ V and x̂ O over all tokens. What is common to all tokens, such
    as a direction that was added to their embeddings and what the network answers to it, would be the largest part of
    queries and keys, and tell nothing.

    The candidates are how far other branches are scaled down.

    Args:
        layer: what is asked for; its heads look at what one head each has copied.
        subspaces: V and O of these.
        balance: what is added to the stream beside the copies.
        others: of the stream, what each may add; ``None``: what the share takes.
    """

    sufficient = 0.95  # of what a head can tell apart: what is lost here is lost for what the circuit predicts
    better = 0.02  # by which a smaller part of other branches must raise the share

    def __init__(self, layer: Layer, subspaces: Subspaces, balance: Balance, others: float | None) -> None:
        super().__init__(layer)
        if self.call.read is None:
            raise StructuredInitError(f"Induction: what '{self.site.name}' reads is not seen")
        self.pairs = dict(zip(layer.looking, zip(*subspaces, strict=True), strict=True))  # head → V and O
        self.coordinates = matching_coordinates(self, layer.size[1])
        self.balance, self.candidates = balance, balance.candidates(others)
        if any(wanted.hidden for wanted in self.wanted.values()):
            self.candidates = self.candidates[:1]  # which cannot help

    def choose_places(self) -> dict[int, Wanted]:
        prefix = self.site.prefix_tokens
        samples, tokens = self.looks.real.shape
        for text in texts_in(self.layer.trial.inputs):
            if text.shape == (samples, tokens - prefix):
                return {head: keys_behind_equals(self.looks, head, prefix, text.cpu()) for head in self.layer.looking}
        raise StructuredInitError(f"Induction: what '{self.site.name}' reads is no text that the model was given")

    def prepare(self, candidate: Factors) -> None:
        self.balance.apply(candidate)
        self.record()
        self.match: dict[int, Float64[Tensor, "2 D k"]] = {}
        for head, subspaces in self.pairs.items():
            query, key = (self.through_norm(each) for each in subspaces)
            means = torch.stack([(self.call.read @ query).mean(dim=0), (self.call.read @ key).mean(dim=0)], dim=1)
            basis = torch.linalg.qr(torch.cat([means, torch.eye(len(means), dtype=means.dtype)], dim=1)).Q[:, 2:]
            used = self.coordinates[: basis.shape[1]]
            pair = torch.zeros(2, self.site.embed_dim, self.site.head_dim, dtype=torch.float64)
            pair[0][:, used] = query @ basis[:, : len(used)]
            pair[1][:, used] = key @ basis[:, : len(used)]
            self.match[head] = pair / math.sqrt(len(used))
            self.used = len(used)

    def write_query(self, head: int, factor: Tensor) -> None:
        self.query[head] = factor * self.match[head][0]

    def write_key(self, key: int, factor: Tensor) -> None:
        head = next(head for head in self.match if head // self.layer.group == key)
        self.key[key] = factor * self.match[head][1]

    def pass_on(self, size: float) -> None:
        """Write values and outputs that pass on what a head sees, W_v = U and W_o = size · Uᵀ, U beside O."""
        value, output = self.site.value.double(), self.site.output.double()
        for head, (_, copied) in self.pairs.items():
            passed = draw_beside(copied, value.shape[-1], generator=self.layer.draw(f"passed {head}"))
            value[head // self.layer.group] = self.through_norm(passed)
            output[head] = size * passed.mT
        self.site.value, self.site.output = value, output
        self.site.note_value_output()


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


def draw_beside(taken: Float64[Tensor, "D v"], width: int, *, generator: torch.Generator) -> Float64[Tensor, "D width"]:
    """Draw orthonormal directions beside some others, as far as there is room."""
    dim, others = taken.shape
    drawn = torch.randn(dim, width, dtype=torch.float64, generator=generator)
    if width + others <= dim:
        drawn = drawn - taken @ (taken.mT @ drawn)
    return torch.linalg.qr(drawn).Q

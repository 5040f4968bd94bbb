"""The second half of induction: a head that finds the token after an earlier occurrence of the present one.

Letters: D embed_dim, k head_dim, v value width, c coordinates of a head that match. V, O (D, v): orthonormal columns.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from structured_init.attention.sequence.balance import Balance
from structured_init.attention.sequence.heads import Heads, Layer
from structured_init.attention.sequence.recorded import Wanted, keys_behind_equals
from structured_init.attention.sequence.trial import texts_in
from structured_init.hosts.attention_positions import Rotary
from structured_init.util.errors import StructuredInitError
from structured_init.util.linalg import random_orthogonal

SLOW = 1.0  # radians by which a pair that matches may be turned over the whole context


def draw_copies(
    embed_dim: int, width: int, free: Int[Tensor, " free"], *, generator: torch.Generator
) -> tuple[Float64[Tensor, "D v"], Float64[Tensor, "D v"]]:
    """Draw V, which a head reads, and O, where it writes copies of that, orthogonal where there is room.

    In ``free`` coordinates, those without positions, V lies where they suffice, and O too, or else beside them.
    """
    everywhere = torch.arange(embed_dim)
    beside = everywhere[~torch.isin(everywhere, free)]

    def draw(columns: int, coordinates: Tensor) -> Tensor:
        drawn = torch.zeros(embed_dim, columns, dtype=torch.float64)
        drawn[coordinates] = random_orthogonal(len(coordinates), columns, generator=generator)
        return drawn

    if width <= len(free) < 2 * width and width <= len(beside):
        return draw(width, free), draw(width, beside)
    place = free if 2 * width <= len(free) else everywhere
    if len(place) < 2 * width:
        return draw(width, place), draw(width, place)
    both = draw(2 * width, place)
    return both[:, :width], both[:, width:]


class MatchingHeads(Heads):
    """A head that holds the present token against copies of what stood before: W_q = √m V R and W_k = √m O R.

    R (v, c) has orthonormal columns beside the means of x̂ V and x̂ O over all tokens. What is common to all tokens, such
    as a direction that was added to their embeddings and what the network answers to it, would be the largest part of
    queries and keys, and tell nothing.

    The candidates are how far other branches are scaled down.

    Args:
        layer: what is asked for; its head looks at what that of the layer before has copied.
        copies: V and O of this.
        balance: what is added to the stream beside the copies.
    """

    sufficient = 0.95  # of what a head can tell apart: what is lost here is lost for what the circuit predicts
    better = 0.02  # by which a smaller part of other branches must raise the share

    def __init__(self, layer: Layer, copies: tuple[Tensor, Tensor], balance: Balance) -> None:
        super().__init__(layer)
        self.copies, self.balance = copies, balance
        self.coordinates = matching_coordinates(self.positions.rotary, self.site.head_dim, layer.size[1])
        self.candidates = balance.candidates()

    def choose_places(self) -> dict[int, Wanted]:
        for text in texts_in(self.layer.trial.inputs):
            if text.shape == self.real.shape:
                return dict.fromkeys(self.layer.looking, keys_behind_equals(text.cpu()))
        raise StructuredInitError(f"Induction: what '{self.site.name}' reads is no text that the model was given")

    def prepare(self, candidate: tuple[float, float]) -> None:
        self.balance.apply(*candidate)
        self.record()
        pair = [each / self.reads for each in self.copies]
        means = torch.stack([(self.call.read @ each).mean(dim=0) for each in pair], dim=1)
        basis = torch.linalg.qr(torch.cat([means, torch.eye(len(means), dtype=means.dtype)], dim=1)).Q[:, 2:]
        used = self.coordinates[: basis.shape[1]]
        self.match = torch.zeros(2, self.site.embed_dim, self.site.head_dim, dtype=torch.float64)
        for matrix, subspace in zip(self.match, pair, strict=True):
            matrix[:, used] = subspace @ basis[:, : len(used)]
        self.match /= math.sqrt(len(used))

    def write_query(self, head: int, factor: Tensor) -> None:
        self.query[head] = factor * self.match[0]

    def write_key(self, key: int, factor: Tensor) -> None:
        self.key[key] = factor * self.match[1]

    def report(self, more: str = "") -> None:
        [(head, share)] = self.shares.items()
        said = f"head {head}: {share:.2f} at {self.length:,} tokens"
        self.site.note(f"attention on what followed an equal token: {said}, measured on {self.layer.trial.on}{more}")
        self.warn_of_short("on what followed an equal token")


def matching_coordinates(rotary: Rotary | None, head_dim: int, length: int) -> Int[Tensor, " c"]:
    """Return the coordinates of a head that can match tokens over all distances, the best first.

    All of them, but under rotary positions those of no pair, and of pairs that turn by less than ``SLOW`` over the
    context, the slowest first; where there are fewer than four, those of the two slowest pairs.
    """
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

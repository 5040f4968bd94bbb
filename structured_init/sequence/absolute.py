"""Looking at an offset through added positions: codes of many frequencies, and heads that turn some of them.

Letters: D embed_dim, F = D/2 frequencies, k head_dim, m = k/2, N tokens.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from structured_init.sequence.heads import Heads
from structured_init.sequence.layer import Layer
from structured_init.util.errors import StructuredInitError

GAINS = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0)  # of positions over content, the least that suffices is taken
ROUNDS = 2  # of looking how large content is beside positions: the first corrects a wrong guess of any size
WRITTEN = "PreviousToken: positions"  # who writes them
GUESS = 0.02  # root mean square of positions of a table that is zero


def code_positions(
    tokens: int, frequencies: Float64[Tensor, " F"], phases: Float64[Tensor, " F"], embed_dim: int
) -> Float64[Tensor, "N D"]:
    """Return √2 cos(ω_j t + φ_j) in coordinate j and √2 sin(…) in F + j, of mean square 1; a last odd one is zero."""
    angle = torch.arange(tokens, dtype=torch.float64)[:, None] * frequencies + phases
    codes = math.sqrt(2) * torch.cat([angle.cos(), angle.sin()], dim=1)
    return torch.nn.functional.pad(codes, (0, embed_dim - codes.shape[1]))


def draw_frequencies(count: int, tokens: int, *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw frequencies π (j + u_j)/F and phases, (F,) each, that tell tokens apart.

    In contexts of up to D tokens u_j = ½, for which the codes of different tokens are orthogonal; equidistant
    frequencies repeat themselves beyond, so there u_j is drawn from U(0, 1), and two codes have a product of about
    1/√F. Phases are drawn, so that no token is special and no norm finds a mean to take out.
    """
    phases = 2 * math.pi * torch.rand(count, dtype=torch.float64, generator=generator)
    place = torch.rand(count, dtype=torch.float64, generator=generator)
    if tokens <= 2 * count:
        place = torch.full_like(place, 0.5)
    return math.pi * (torch.arange(count, dtype=torch.float64) + place) / count, phases


def choose_frequencies(count: int, head_dim: int, *, generator: torch.Generator) -> Int[Tensor, " m"]:
    """Choose one frequency of each of m = k/2 equal bands, at random: all scales, and no common period."""
    bands = min(head_dim // 2, count)
    place = torch.arange(bands) + torch.rand(bands, dtype=torch.float64, generator=generator)
    return (place * count / bands).long().clamp(max=count - 1)


def turn_frequencies(
    frequencies: Float64[Tensor, " F"], chosen: Int[Tensor, " m"], offset: int, embed_dim: int, head_dim: int
) -> Float64[Tensor, "D k"]:
    """Return W with x W = the chosen frequencies of the token ``offset`` before: W_q of a head, with offset 0 its W_k.

    So the product of W_q and W_k on codes is 2 Σ_j cos ω_j (t − offset − s): largest, 2 m, at s = t − offset.
    """
    count, size = len(frequencies), len(chosen)
    angle, place = frequencies[chosen] * offset, torch.arange(size)
    weight = torch.zeros(embed_dim, head_dim, dtype=torch.float64)
    weight[chosen, place] = angle.cos()
    weight[count + chosen, place] = angle.sin()
    weight[chosen, size + place] = -angle.sin()
    weight[count + chosen, size + place] = angle.cos()
    return weight


class AbsoluteHeads(Heads):
    """Positions are codes, and heads read some of their frequencies. The candidates are gains."""

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer)
        self.table = self.positions.absolute
        width, count = self.site.embed_dim, self.site.embed_dim // 2
        draw = layer.rng.generator(self.table.name, "PreviousToken: codes")
        self.frequencies, phases = draw_frequencies(count, self.table.num_tokens, generator=draw)
        self.chosen = {}
        for key in layer.keys:
            draw = layer.draw(f"frequencies {key}")
            self.chosen[key] = choose_frequencies(count, self.site.head_dim, generator=draw)
        update = self.weights.updates.get(id(self.table.tensor))
        self.written = update is not None and WRITTEN in update.by
        if self.written:
            self.how = "positions as written for a layer before"
            return
        self.candidates = GAINS
        self.codes = code_positions(self.table.num_tokens, self.frequencies, phases, width)
        self.free = self._spare_coordinates()
        self.codes[:, self.free] = 0.0
        self.unit = self._measure_content()
        if not self.table.saved:
            name = self.table.name
            self.weights.warn(f"'{name}' is not saved in checkpoints: a reloaded model has its original positions")

    def _spare_coordinates(self) -> Int[Tensor, " free"]:
        """Return coordinates whose frequencies no head reads, drawn at random, as many as the layer asks for."""
        count = len(self.frequencies)
        unread = torch.ones(count, dtype=torch.bool)
        unread[torch.cat(list(self.chosen.values()))] = False
        rest = unread.nonzero()[:, 0]
        order = torch.rand(len(rest), generator=self.layer.draw("spare frequencies")).argsort()
        for number in self.layer.spare:
            if number <= 2 * len(rest):
                taken = rest[order[: -(-number // 2)]]
                return torch.cat([taken, count + taken])
        return rest[:0]

    def _measure_content(self) -> float:
        """Return by what codes must be multiplied to be as large as content, in the coordinates that they keep.

        In two runs with positions of opposite sign, half of the difference of what the layer reads are the positions,
        half of the sum is the content. What all tokens have in common is content too: a norm divides by it as well.
        """
        size = self.codes.square().mean().sqrt()
        unit = self.table.value.double().square().mean().sqrt().item() or GUESS
        for _ in range(ROUNDS):
            reads = []
            for sign in (-1, 1):
                self.table.write(sign * unit * self.codes, WRITTEN)
                self.record()
                reads.append(self.read)
            positions, content = reads[1] - reads[0], reads[1] + reads[0]
            if not positions.any():
                raise StructuredInitError(f"PreviousToken: '{self.table.name}' does not reach '{self.site.name}'")
            unit *= (content.norm() / positions.norm() * size).item()
        return unit

    def prepare(self, candidate: float) -> None:
        if self.written:
            return
        self.table.write(candidate * self.unit * self.codes, WRITTEN)
        size = candidate * self.codes.square().mean().sqrt().item()
        self.how = f"positions {size:.3g} times as large as content, whose root mean square is {self.unit:.2g}"
        self.record()

    def write_query(self, head: int, factor: Tensor) -> None:
        self.query[head] = factor * self._read_frequencies(head // self.layer.group, self.layer.looking[head][1])

    def write_key(self, key: int, factor: Tensor) -> None:
        self.key[key] = factor * self._read_frequencies(key, 0)

    def _read_frequencies(self, key: int, offset: int) -> Float64[Tensor, "D k"]:
        chosen = self.chosen[key]
        weight = turn_frequencies(self.frequencies, chosen, offset, self.site.embed_dim, self.site.head_dim)
        return weight / self.reads / math.sqrt(2 * len(chosen))  # so that queries · keys is 1 on codes alone

"""Looking at an offset through rotations: constant parts of queries and keys, whose product depends on the distance.

A constant query b_q and key b_k, turned by their positions, have the product Σ_j w_j cos θ_j (t − s − offset) where b_k
is √w_j in the first coordinate of each pair and b_q the same turned by −θ_j offset. Of the weights w_j those are best
that leave least of the attention for other distances.

Letters: D embed_dim, k head_dim, r turned pairs, L distances.
"""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int
from torch import Tensor, nn

from structured_init.hosts.attention import AttentionSite
from structured_init.hosts.layout import projection_bias
from structured_init.sequence.heads import FIRST, GROWS, Heads
from structured_init.sequence.layer import Layer
from structured_init.util.errors import StructuredInitError
from structured_init.util.names import is_stack, outwards, within
from structured_init.weights import Weights

DOUBLED_TWICE, ROUNDS, RATE = 16, 400, 2.0  # of the search for weights: strengths, steps at each, size of a step
CONTENT = (1.0, 0.5, 0.25, 0.125, 0.0)  # of the host's queries and keys, the most that leaves the share
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)  # that may make the tokens
COMMON = 0.5  # root mean square of a direction common to all tokens over that of content


def best_weights(
    frequencies: Float64[Tensor, " r"], distances: Int[Tensor, " L"], target: float
) -> Float64[Tensor, " r"]:
    """Return weights w ≥ 0 of sum 1 whose kernel, at the least strength, has the target share at distance 0.

    The share at strength S is 1/(1 + Σ_τ exp(−S Σ_j w_j (1 − cos θ_j τ))). For growing S the sum over distances is
    made small by exponentiated gradients, which is convex in w, until the share is reached.
    """
    gaps = 1 - (distances[:, None].double() * frequencies).cos()
    weights = torch.full((len(frequencies),), 1 / len(frequencies), dtype=torch.float64)
    for step in range(DOUBLED_TWICE):
        strength = 4.0 * 2 ** (step / 2)
        for _ in range(ROUNDS):
            rest = (-strength * gaps @ weights).softmax(dim=0)  # how much each distance still draws
            gradient = rest @ gaps
            weights = weights * (RATE * (gradient - gradient.max())).exp()
            weights = weights / weights.sum()
        if torch.logsumexp(-strength * gaps @ weights, dim=0).neg().sigmoid() >= target:
            break
    return weights


class RotaryHeads(Heads):
    """Constant parts stand in biases; where there are none, they are read from a direction u common to all tokens.

    W ← kept · (W − u uᵀ W) + u bᵀ/a, a the mean of x̂ u. The mean of x̂ in place of u would not do: what it has of
    content differs from token to token, which is too much where logits are large.
    The candidates are what is kept of the host's own queries and keys.
    """

    candidates = CONTENT
    grows = 0.0  # slow pairs hardly tell neighbours apart: these share attention until strengths are in the thousands

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer)
        site, rotary = self.site, self.positions.rotary
        self.biases = [projection_bias(site.module, each) for each in (site.layout.query, site.layout.key)]
        self.basis = "biases of turned queries and keys"
        if None in self.biases:
            self.biases = []
            self._add_direction()
            self.record()
            self.along = (self.read @ self.direction).mean()
        if site.layout.query_key_norm:
            # The norms make the same of all sizes: those of the host are kept.
            sizes = [(self.read @ each).square().mean().sqrt() for each in (self.host_query, self.host_key)]
            self.grows = GROWS
            self.first = max(FIRST, (site.scale * site.head_dim * sizes[0] * sizes[1]).item())
        length = layer.size[1]
        ahead = length - 1
        if layer.causal:
            ahead = max(0, *(offset[1] for offset in layer.looking.values()))
        distances = torch.arange(-ahead, length)
        self.kernel = best_weights(rotary.frequencies, distances[distances != 0], layer.target).sqrt()

    def _add_direction(self) -> None:
        """Give every token's embedding the same part along a direction u.

        E ← R (E − (E u) uᵀ) + COMMON · |E| u, R makes all rows equally long, |E|. A norm would leave another part of u
        in rows of other lengths, by some 1/√(2D), which is too much where logits are large. Rows of zeros, as padding
        has, stay zero. u has no mean, which a layer norm would take out.
        """
        site, weights = self.site, self.weights
        tables = token_tables(site, weights)
        if not tables:
            raise StructuredInitError(
                f"PreviousToken: '{site.name}' rotates queries and keys that have no biases, which needs a direction"
                " common to all token embeddings, and a forward pass looked up none of its width"
            )
        names = [weights.names(table)[0] for table in tables]
        draw = self.layer.rng.generator(names[0], "PreviousToken: direction")
        direction = torch.randn(site.embed_dim, dtype=torch.float64, generator=draw)
        self.direction = torch.nn.functional.normalize(direction - direction.mean(), dim=0)
        for tensor in tables:
            table = weights.edit(tensor, "PreviousToken: a direction common to all tokens")
            along = self.direction.to(table.dtype)
            table.sub_(torch.outer(table @ along, along))
            lengths = torch.linalg.vector_norm(table, dim=1, keepdim=True)
            filled = lengths > 0
            length = lengths[filled].square().mean().sqrt() if filled.any() else lengths.new_ones(())
            table.mul_(length / lengths.where(filled, 1)).add_(COMMON * length * filled * along)
        self.basis = f"a direction common to all rows but zeros of {', '.join(names)}, which were changed"
        self.basis += " (where the output is tied to them, it adds one number to their logits)"

    def prepare(self, candidate: float) -> None:
        self.kept = candidate
        self.how = self.basis
        if candidate != 1:
            self.how += f"; the host's own queries and keys are multiplied by {candidate:g}"

    def write_query(self, head: int, factor: Tensor) -> None:
        self._write_constant(0, self.query, head, factor * self._turn_constant(self.layer.looking[head][1]))

    def write_key(self, key: int, factor: Tensor) -> None:
        self._write_constant(1, self.key, key, factor * self._turn_constant(0))

    def _write_constant(self, part: int, matrices: Tensor, number: int, constant: Float64[Tensor, " k"]) -> None:
        matrices[number] *= self.kept
        if self.biases:
            rows = self.biases[part].get(self.weights).double()
            rows[number] = constant
            self.biases[part].set(self.weights, rows, "PreviousToken: biases")
        else:
            own = self.direction @ matrices[number]
            matrices[number] += torch.outer(self.direction, constant / self.along - own)

    def _turn_constant(self, offset: int) -> Float64[Tensor, " k"]:
        """Return b_q of an offset, or b_k of offset 0, for a strength of 1."""
        turns, constant = self.positions.rotary, torch.zeros(self.site.head_dim, dtype=torch.float64)
        first, second = turns.pairs.unbind(dim=1)
        angle = turns.frequencies * offset
        constant[first], constant[second] = self.kernel * angle.cos(), -self.kernel * angle.sin()
        return constant


def token_tables(site: AttentionSite, weights: Weights) -> list[Tensor]:
    """Return the tables of tokens that are added up before the layers around an attention layer, the largest first.

    These are parameters of the tokens' width (R, D) that a pass looked up, outside of that list of layers. They are
    looked for in the module that holds the list, then in those around it, but not beyond one whose convolution makes
    the tokens.
    """
    modules, width = weights.modules, site.embed_dim
    stacks = [name for name in outwards(site.name) if name in modules and is_stack(modules[name])]
    layers = [site.name, *stacks][-1]
    for around in outwards(layers.rpartition(".")[0]):
        outside = [each for name, each in modules.items() if within(name, around) and not within(name, layers)]
        own = dict.fromkeys(each for module in outside for each in module.parameters(recurse=False))
        tables = [each for each in own if id(each) in weights.seen.one_row and each.shape[1:] == (width,)]
        if tables or any(isinstance(each, CONVOLUTIONS) and each.out_channels == width for each in outside):
            return sorted(tables, key=len, reverse=True)
    return []

"""The second half of induction: a head that finds the token after an earlier occurrence of the present one.

It looks at copies that a head of the layer before adds to the stream; what other heads of this layer and the MLP behind
it add beside them is scaled down as far as the head takes it.

Letters: D embed_dim, k head_dim, v value width, c coordinates of a head that match. V, O (D, v): orthonormal columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float64, Int
from torch import Tensor, nn

from structured_init.attention.planned_run import run_planned
from structured_init.attention.stream_share import Made, Residuals, last_module, rms_of, tensors
from structured_init.hosts.attention import AttentionSite
from structured_init.hosts.attention_positions import Rotary
from structured_init.inputs import explain_failure
from structured_init.sequence.heads import Heads
from structured_init.sequence.layer import Layer, texts_in
from structured_init.sequence.recorded import Looks, Reached, keys_behind_equals
from structured_init.util.errors import StructuredInitError
from structured_init.util.linalg import random_orthogonal

BALANCED = "Induction: balance"
PARTS = (1.0, 0.3, 0.1, 0.03, 0.01)  # of the stream, or of what is added where that is less
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


@dataclass
class Balance:
    """What is added to the stream between two layers, beside copies, as the host built it."""

    first: Heads
    stream: float  # root mean square of what the first layer is added to
    heads: float  # that of what its other heads put out, before any norm
    mlp: float  # that of what else is added before the second layer, by an MLP mostly, behind any norm
    last: dict[nn.Parameter, Tensor]  # parameters of the MLP that puts this out → as the host built them
    of_heads: float = 1.0  # factor that is applied to what the other heads put out
    of_mlp: float = 1.0  # that on what the MLP does

    def candidates(self) -> list[tuple[float, float]]:
        """Return the factors (on heads, on the MLP) to try: the host's own, then at most the stream, then less.

        A norm behind the MLP takes a factor out, until what it is given is below its epsilon.
        """
        heads = min(1.0, self.stream / max(self.heads, 1e-12))
        mlp = min(1.0, self.stream / max(self.mlp, 1e-12))
        smaller = [(part * heads, part * mlp if self.last else 1.0) for part in PARTS]
        return list(dict.fromkeys([(1.0, 1.0), *smaller]))

    def apply(self, of_heads: float, of_mlp: float) -> None:
        """Multiply what the other heads and the MLP were built as, and nothing where that is so already."""
        site, copying = self.first.site, self.first.layer.looking
        if of_heads != self.of_heads:
            output = site.output
            others = set(range(site.num_heads)) - copying.keys()
            output[list(others)] *= of_heads / self.of_heads
            site.by(BALANCED).output = output
        if of_mlp != self.of_mlp:
            for parameter, host in self.last.items():
                self.first.weights.write(parameter, of_mlp * host, BALANCED)
        self.of_heads, self.of_mlp = of_heads, of_mlp

    def describe(self) -> str:
        """Say for the report what was scaled."""
        if self.of_heads == self.of_mlp == 1:
            return ""
        heads, mlp = self.of_heads * self.heads / self.stream, self.of_mlp * self.mlp / self.stream
        scaled = f"; its other heads were scaled by {self.of_heads:.2g} and its MLP by {self.of_mlp:.2g}"
        return f"{scaled}: they are {heads:.2g} and {mlp:.2g} times the stream"


def measure_balance(first: Heads, second: AttentionSite) -> Balance:
    """Run the network to the second layer, while the head that will copy is silent, and measure what is added before.

    The MLP is what puts out D channels from another number of them between the two layers.

    Raises:
        StructuredInitError: what the layers put out is not seen to be added to a stream.
    """
    weights, trial, site, width = first.weights, first.layer.trial, first.site, first.site.embed_dim
    streams: dict[str, Tensor] = {}  # layer → what its output is added to
    added: dict[str, Tensor] = {}  # layer → what is added, behind any norm or gate
    branches: list[Tensor] = []  # what the layers put out, before these
    between: list[nn.Module] = []  # what ends an MLP

    def enter(name: str, stream: Tensor, _: Made, behind: Callable[[], Tensor]) -> None:
        streams[name], added[name] = stream.clone(), behind()
        if name == second.name:
            raise Reached

    def put_out(name: str, _: nn.Module, __: tuple, output: Any) -> None:
        branch = next(tensors(output))
        residuals.puts_out(name, branch)
        branches.append(branch.clone())

    def look(module: nn.Module, args: tuple, output: Any) -> None:
        widths = [each.shape[-1] for each in (*tensors(args), *tensors(output))]
        # Between the two layers: the first has put out, and the second has not.
        if branches and len(widths) == 2 and widths[0] != widths[1] == width:
            between.append(module)

    ends = {last_module(each, weights.modules): each.name for each in (site, second)}
    residuals = Residuals(enter)
    with ExitStack() as hooks:
        for module in weights.modules.values():
            hook = partial(put_out, ends[module]) if module in ends else look
            hooks.enter_context(module.register_forward_hook(hook))
        hooks.enter_context(explain_failure(trial.part, given=weights.batch is not None, bugs=True))
        hooks.enter_context(suppress(Reached))
        run_planned(weights, trial.inputs, trial.part, residuals)
    if unseen := {site.name, second.name} - streams.keys():
        raise StructuredInitError(
            f"Induction: what '{min(unseen)}' puts out was not seen to be added to a stream on {trial.on}"
        )
    last = {}
    for module in between:
        for parameter in module.parameters(recurse=False):
            last[parameter] = weights.read(parameter).clone()
    rest = streams[second.name] - streams[site.name] - added[site.name]
    return Balance(first, rms_of(streams[site.name]), rms_of(branches[0]), rms_of(rest), last)


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

    def choose_places(self) -> dict[int, Looks]:
        texts = texts_in(self.layer.trial.inputs, self.real.shape)
        if not texts:
            raise StructuredInitError(f"Induction: what '{self.site.name}' reads is no text that the model was given")
        return dict.fromkeys(self.layer.looking, keys_behind_equals(texts[0]))

    def prepare(self, candidate: tuple[float, float]) -> None:
        self.balance.apply(*candidate)
        self.record()
        pair = [each / self.reads for each in self.copies]
        means = torch.stack([(self.read @ each).mean(dim=0) for each in pair], dim=1)
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

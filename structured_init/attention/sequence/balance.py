"""What the first layer's other heads and the MLP behind them add to the stream, and how much of it is left.

Letters: D embed_dim.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from structured_init.attention.sequence.heads import Heads
from structured_init.attention.sequence.recorded import Reached, run_until_reached
from structured_init.attention.stream_share import last_module, tensors
from structured_init.hosts.attention import AttentionSite
from structured_init.hosts.stream import rms_of

BALANCED = "Induction: balance"
PARTS = (1.0, 0.3, 0.1, 0.03, 0.01)  # of the stream, or of what is added where that is less


class Factors(NamedTuple):
    """On what the first layer's other heads add, and on what the MLP behind them does."""

    heads: float = 1.0
    mlp: float = 1.0


@dataclass
class Balance:
    """What is added to the stream between two layers, beside copies, as the host built it."""

    site: AttentionSite  # the first layer, under the name of the writer
    copying: Collection[int]  # its heads that copy
    stream: float  # root mean square of what the first layer is added to
    heads: float = 0.0  # that of what its other heads add
    mlp: float = 0.0  # that of what the last matrices of the MLP put out
    last: dict[nn.Parameter, Tensor] = field(default_factory=dict)  # parameters of these → as the host built them

    def candidates(self, others: float | None) -> list[Factors]:
        """Return the factors to try, in this order: the host's own, then at most the stream, then less and less.

        With ``others``, each adds at most so many times the stream, and nothing else is tried. Behind a norm, which
        takes a factor out, one is felt where what is left is below the epsilon of the norm.
        """
        if others is not None:
            return [self._within(others)]
        most = self._within(1.0)
        return [Factors(), *(Factors(part * most.heads, part * most.mlp) for part in PARTS)]

    def _within(self, limit: float) -> Factors:
        most = limit * self.stream
        heads = min(1.0, most / self.heads) if self.heads else 1.0
        mlp = min(1.0, most / self.mlp) if self.mlp else 1.0
        return Factors(heads, mlp)

    def apply(self, heads: Heads, built: Tensor, factors: Factors) -> None:
        """Multiply what other heads and the MLP were ``built`` as."""
        self.site.output = built
        scale_heads(self.site, [each for each in range(len(built)) if each not in self.copying], factors.heads)
        for parameter, host in self.last.items():
            heads.weights.write(parameter, factors.mlp * host, BALANCED)
            if factors.mlp == 1:
                heads.weights.take_back(parameter, BALANCED)

    def describe(self, factors: Factors) -> str:
        """Say for the report what was scaled."""
        if factors == Factors():
            return ""
        mlp = "" if factors.mlp == 1 else f" and its MLP by {factors.mlp:.2g}"
        rest = f", and the MLP {factors.mlp * self.mlp / self.stream:.2g}" if self.mlp else ""
        return (
            f"; its other heads were scaled by {factors.heads:.2g}{mlp}: they are"
            f" {factors.heads * self.heads / self.stream:.2g} times the stream{rest}"
        )


def measure_balance(first: Heads, second: AttentionSite, stream: float) -> Balance:
    """Run the network with the heads that copy silent, and measure what is added before the second layer.

    The MLP is what puts out D channels from another number of them between the two layers.
    """
    weights, site, width = first.weights, first.site.by(BALANCED), first.site.embed_dim
    balance = Balance(site, list(first.layer.looking), stream)
    built = site.output
    silent = built.clone()
    silent[balance.copying] = 0.0
    added: list[float] = []

    def put_out(_: nn.Module, __: tuple, output: Any) -> None:
        added.append(rms_of(next(tensors(output))))

    def look(module: nn.Module, args: tuple, output: Any) -> None:
        given = next(tensors(args), None)
        if not added or given is None or not isinstance(output, Tensor):
            return
        if output.shape[-1] == width != given.shape[-1]:
            balance.mlp = max(balance.mlp, rms_of(output))
            for parameter in module._parameters.values():
                if parameter is not None:
                    balance.last[parameter] = weights.read(parameter).clone()

    def stop(*_: object) -> None:
        if added:  # a layer that is both runs twice
            raise Reached

    with ExitStack() as hooks:
        hooks.callback(second.module.register_forward_pre_hook(stop).remove)
        hooks.callback(last_module(site, weights.modules).register_forward_hook(put_out).remove)
        for module in weights.modules.values():
            if any(each is not None and each.ndim == 2 for each in module._parameters.values()):
                hooks.callback(module.register_forward_hook(look).remove)
        site.output = silent
        run_until_reached(weights, first.layer.trial)
        site.output = built
    balance.heads = added[0] if added else 0.0
    if not balance.last:
        site.note("what follows it could not be scaled: no MLP was seen between the two layers")
    return balance


def scale_heads(site: AttentionSite, heads: Collection[int], factor: float) -> None:
    """Multiply what some heads of a layer add."""
    if factor != 1:
        output = site.output
        output[list(heads)] *= factor
        site.output = output

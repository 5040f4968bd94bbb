"""What the first layer's other heads and the MLP behind them add to the stream, and how much of it is left.

Letters: D embed_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from structured_init.attention.sequence.heads import Heads
from structured_init.attention.sequence.recorded import Reached, run_until_reached
from structured_init.attention.stream_share import Made, Residuals, last_module, tensors
from structured_init.hosts.attention import AttentionSite
from structured_init.hosts.stream import rms_of
from structured_init.util.errors import StructuredInitError

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
    stream: float = 0.0  # root mean square of what the first layer is added to
    heads: float = 0.0  # that of what its other heads put out, before any norm
    mlp: float = 0.0  # that of what else is added before the second layer, by an MLP mostly, behind any norm
    last: dict[nn.Parameter, Tensor] = field(default_factory=dict)  # parameters of these → as the host built them

    def candidates(self, others: float | None) -> list[Factors]:
        """Return the factors to try, in this order: the host's own, then at most the stream, then less and less.

        With ``others``, each adds at most so many times the stream, and nothing else is tried. A norm behind the MLP
        takes a factor out, until what it is given is below its epsilon.
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
        heads, mlp = factors.heads * self.heads / self.stream, factors.mlp * self.mlp / self.stream
        also = f" and its MLP by {factors.mlp:.2g}" if self.last else ""
        rest = f" and {mlp:.2g}" if self.last else ""
        said = f"they are {heads:.2g}{rest} times the stream"
        return f"; its other heads were scaled by {factors.heads:.2g}{also}: {said}"


def measure_balance(first: Heads, second: AttentionSite) -> Balance:
    """Run the network with the heads that copy silent, and measure what is added before the second layer.

    The MLP is what puts out D channels from another number of them between the two layers.

    Raises:
        StructuredInitError: what the layers put out is not seen to be added to a stream.
    """
    weights = first.weights
    site = first.site.by("PreviousToken: value_output")
    balance = Balance(first.site.by(BALANCED), list(first.layer.looking))
    built = site.output
    silent = built.clone()
    silent[balance.copying] = 0.0
    site.output = silent
    seen = _run_between(first, second)
    site.output = built
    for layer in (site.name, second.name):
        if layer not in seen.streams:
            raise StructuredInitError(
                f"Induction: what '{layer}' puts out was not seen to be added to a stream on {first.layer.trial.on}"
            )
    stream = seen.streams[site.name]
    balance.stream = rms_of(stream)
    balance.heads = rms_of(seen.put_out)
    balance.mlp = rms_of(seen.streams[second.name] - stream - seen.added[site.name])
    for module in seen.ends:
        for parameter in module._parameters.values():
            if parameter is not None:
                balance.last[parameter] = weights.read(parameter).clone()
    if not seen.ends:
        site.note("what follows it could not be scaled: no MLP was seen between the two layers")
    return balance


@dataclass
class _Seen:
    """What a run showed of two layers."""

    streams: dict[str, Tensor] = field(default_factory=dict)  # layer → what its output is added to
    added: dict[str, Tensor] = field(default_factory=dict)  # layer → what is added, behind any norm or gate
    put_out: Tensor | None = None  # by the first layer, before these
    ends: list[nn.Module] = field(default_factory=list)  # of the MLP between


def _run_between(first: Heads, second: AttentionSite) -> _Seen:
    """Run the network up to the sum with what the second layer puts out."""
    weights, width, seen = first.weights, first.site.embed_dim, _Seen()
    last = {each.name: last_module(each, weights.modules) for each in (first.site, second)}

    def enter(name: str, stream: Tensor, _: Made, added: Callable[[], Tensor]) -> None:
        if name not in seen.streams:
            seen.streams[name], seen.added[name] = stream.clone(), added()
        if name == second.name:
            raise Reached

    def put_out(name: str, _: nn.Module, __: tuple, output: Any) -> None:
        branch = next(tensors(output))
        residuals.puts_out(name, branch)
        if seen.put_out is None:
            seen.put_out = branch.clone()

    def look(module: nn.Module, args: tuple, output: Any) -> None:
        given = next(tensors(args), None)
        if seen.put_out is None or given is None or not isinstance(output, Tensor):
            return
        if output.shape[-1] == width != given.shape[-1]:
            seen.ends.append(module)

    residuals = Residuals(enter)
    with ExitStack() as hooks:
        for name, module in last.items():
            hooks.callback(module.register_forward_hook(partial(put_out, name)).remove)
        for module in weights.modules.values():
            matrices = [each for each in module._parameters.values() if each is not None and each.ndim == 2]
            if matrices and module not in last.values():
                hooks.callback(module.register_forward_hook(look).remove)
        run_until_reached(weights, first.layer.trial, residuals)
    return seen


def scale_heads(site: AttentionSite, heads: Collection[int], factor: float) -> None:
    """Multiply what some heads of a layer add."""
    if factor != 1:
        output = site.output
        output[list(heads)] *= factor
        site.output = output

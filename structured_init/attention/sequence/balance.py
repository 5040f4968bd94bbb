"""What the first layer's other heads and the MLP behind them add to the stream, and how much of it is left."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
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

    first: Heads
    stream: float  # root mean square of what the first layer is added to
    heads: float  # that of what its other heads put out, before any norm
    mlp: float  # that of what else is added before the second layer, by an MLP mostly, behind any norm
    last: dict[nn.Parameter, Tensor]  # parameters of these → as the host built them
    applied: Factors = field(default_factory=Factors)

    def candidates(self, others: float | None) -> Iterable[Factors]:
        """Return the factors to try, in this order: the host's own, then at most the stream, then less and less.

        With ``others``, each adds at most so many times the stream, and nothing else is tried. A norm behind the MLP
        takes a factor out, until what it is given is below its epsilon.
        """
        most = (1.0 if others is None else others) * self.stream
        heads, mlp = (min(1.0, most / max(size, 1e-12)) for size in (self.heads, self.mlp))
        if others is not None:
            return [Factors(heads, mlp)]
        return dict.fromkeys([Factors(), *(Factors(part * heads, part * mlp) for part in PARTS)])

    def apply(self, factors: Factors) -> None:
        """Multiply what the other heads and the MLP were built as, and nothing where that is so already."""
        if factors == self.applied:
            return
        others = [head for head in range(self.first.site.num_heads) if head not in self.first.layer.looking]
        scale_heads(self.first.site.by(BALANCED), others, factors.heads / self.applied.heads)
        for parameter, host in self.last.items():
            self.first.weights.write(parameter, factors.mlp * host, BALANCED)
            if factors.mlp == 1:
                self.first.weights.take_back(parameter, BALANCED)
        self.applied = factors

    def describe(self) -> str:
        """Say for the report what was scaled."""
        if self.applied == Factors():
            return ""
        heads, mlp = self.applied.heads * self.heads / self.stream, self.applied.mlp * self.mlp / self.stream
        also, rest = (f" and its MLP by {self.applied.mlp:.2g}", f" and {mlp:.2g}") if self.last else ("", "")
        said = f"they are {heads:.2g}{rest} times the stream"
        return f"; its other heads were scaled by {self.applied.heads:.2g}{also}: {said}"


def scale_heads(site: AttentionSite, heads: Collection[int], factor: float) -> None:
    """Multiply what some heads of a layer add."""
    if factor != 1:
        output = site.output
        output[list(heads)] *= factor
        site.output = output


def measure_balance(first: Heads, second: AttentionSite) -> Balance:
    """Silence the heads that will copy, run the network, and measure what is added before the second layer.

    The MLP is what puts out D channels from another number of them between the two layers.

    Raises:
        StructuredInitError: what the layers put out is not seen to be added to a stream.
    """
    weights = first.weights
    site = first.site.by("PreviousToken: value_output")
    silent = site.output
    silent[list(first.layer.looking)] = 0.0
    site.output = silent
    seen = _run_between(first, second)
    for layer in (site.name, second.name):
        if layer not in seen.streams:
            raise StructuredInitError(
                f"Induction: what '{layer}' puts out was not seen to be added to a stream on {first.layer.trial.on}"
            )
    if not seen.ends:
        site.note("what follows it could not be scaled: no MLP was seen between the two layers")
    held = [each for module in seen.ends for each in module._parameters.values() if each is not None]
    last = {parameter: weights.read(parameter).clone() for parameter in held}
    stream = seen.streams[site.name]
    behind = seen.streams[second.name] - stream - seen.added[site.name]
    return Balance(first, rms_of(stream), rms_of(seen.put_out), rms_of(behind), last)


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

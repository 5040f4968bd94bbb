"""What the first layer's other heads and the MLP behind them add to the stream, and how much of it is left."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
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


HOST = Factors()


@dataclass
class Balance:
    """What is added to the stream between two layers, beside copies, as the host built it."""

    first: Heads
    stream: float  # root mean square of what the first layer is added to
    heads: float  # that of what its other heads put out, before any norm
    mlp: float  # that of what else is added before the second layer, by an MLP mostly, behind any norm
    last: dict[nn.Parameter, Tensor]  # parameters of these → as the host built them
    applied: Factors = HOST

    def candidates(self) -> list[Factors]:
        """Return the factors to try, in this order: the host's own, then at most the stream, then less and less.

        A norm behind the MLP takes a factor out, until what it is given is below its epsilon.
        """
        heads = min(1.0, self.stream / max(self.heads, 1e-12))
        mlp = min(1.0, self.stream / max(self.mlp, 1e-12))
        tried = [HOST]
        for part in PARTS:
            tried.append(Factors(part * heads, part * mlp))
        return list(dict.fromkeys(tried))

    def apply(self, factors: Factors) -> None:
        """Multiply what the other heads and the MLP were built as, and nothing where that is so already."""
        others = [head for head in range(self.first.site.num_heads) if head not in self.first.layer.looking]
        scale_heads(self.first.site, others, factors.heads / self.applied.heads)
        if factors.mlp != self.applied.mlp:
            for parameter, host in self.last.items():
                self.first.weights.write(parameter, factors.mlp * host, BALANCED)
        self.applied = factors

    def describe(self) -> str:
        """Say for the report what was scaled."""
        if self.applied == HOST:
            return ""
        heads, mlp = self.applied.heads * self.heads / self.stream, self.applied.mlp * self.mlp / self.stream
        scaled = f"; its other heads were scaled by {self.applied.heads:.2g}"
        if not self.last:
            return f"{scaled}: they are {heads:.2g} times the stream"
        return f"{scaled} and its MLP by {self.applied.mlp:.2g}: they are {heads:.2g} and {mlp:.2g} times the stream"


def scale_heads(site: AttentionSite, heads: Collection[int], factor: float) -> None:
    """Multiply what some heads of a layer add."""
    if factor != 1:
        output = site.output
        output[list(heads)] *= factor
        site.by(BALANCED).output = output


def measure_balance(first: Heads, second: AttentionSite) -> Balance:
    """Run the network to the second layer, while the head that will copy is silent, and measure what is added before.

    The MLP is what puts out D channels from another number of them between the two layers.

    Raises:
        StructuredInitError: what the layers put out is not seen to be added to a stream.
    """
    weights, site, width = first.weights, first.site, first.site.embed_dim
    streams: dict[str, Tensor] = {}  # layer → what its output is added to
    added: dict[str, Tensor] = {}  # layer → what is added, behind any norm or gate
    branches: list[Tensor] = []  # what the layers put out, before these
    ends: list[nn.Module] = []  # of the MLP between

    def enter(name: str, stream: Tensor, _: Made, behind: Callable[[], Tensor]) -> None:
        if name not in streams:
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
            ends.append(module)

    last = {each.name: last_module(each, weights.modules) for each in (site, second)}
    residuals = Residuals(enter)
    with ExitStack() as hooks:
        for name, module in last.items():
            hooks.callback(module.register_forward_hook(partial(put_out, name)).remove)
        for module in weights.modules.values():
            if module._parameters and module not in last.values():
                hooks.callback(module.register_forward_hook(look).remove)
        run_until_reached(weights, first.layer.trial, residuals)
    for layer in last:
        if layer not in streams:
            raise StructuredInitError(
                f"Induction: what '{layer}' puts out was not seen to be added to a stream on {first.layer.trial.on}"
            )
    if not ends:
        site.note("what follows it could not be scaled: no MLP was seen between the two layers")
    built = {}
    for module in ends:
        for parameter in module.parameters(recurse=False):
            built[parameter] = weights.read(parameter).clone()
    stream = streams[site.name]
    rest = streams[second.name] - stream - added[site.name]
    return Balance(first, rms_of(stream), rms_of(branches[0]), rms_of(rest), built)

"""What the first layer's other heads and the MLP behind them add to the stream, and how much of it is left."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from structured_init.attention.sequence.heads import Heads
from structured_init.attention.sequence.recorded import Reached, run_until_reached
from structured_init.attention.stream_share import Made, Residuals, last_module, tensors
from structured_init.hosts.attention import AttentionSite
from structured_init.hosts.stream import rms_of
from structured_init.util.errors import StructuredInitError

BALANCED = "Induction: balance"
PARTS = (1.0, 0.3, 0.1, 0.03, 0.01)  # of the stream, or of what is added where that is less


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
            others = [head for head in range(site.num_heads) if head not in copying]
            output[others] *= of_heads / self.of_heads
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
    weights, site, width = first.weights, first.site, first.site.embed_dim
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
        run_until_reached(weights, first.layer.trial, residuals)
    for layer in (site.name, second.name):
        if layer not in streams:
            raise StructuredInitError(
                f"Induction: what '{layer}' puts out was not seen to be added to a stream on {first.layer.trial.on}"
            )
    last = {}
    for module in between:
        for parameter in module.parameters(recurse=False):
            last[parameter] = weights.read(parameter).clone()
    rest = streams[second.name] - streams[site.name] - added[site.name]
    return Balance(first, rms_of(streams[site.name]), rms_of(branches[0]), rms_of(rest), last)

"""How large the branch of attention is beside the stream that it is added to, and what makes it a given share.

Letters: D embed_dim, x the stream, x̂ what attention reads of it after its norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakIdKeyDictionary

from structured_init.attention.planned_run import owner_of, run_planned, what_the_host_offers
from structured_init.hosts.attention import AttentionSite
from structured_init.hosts.layout import JoinedProjection, pieces, projection_bias
from structured_init.hosts.watching.records import tensors as held
from structured_init.inputs import Inputs, as_inputs
from structured_init.util.errors import StructuredInitError
from structured_init.weights import Weights

CONTEXT = 128  # tokens of a text that the host library offers, if it takes as many: branches average over them


@dataclass(frozen=True)
class Branch:
    """One attention layer between the stream and what it adds."""

    stream: float  # root mean square of x
    factor: float  # on what the layer adds, for it to be the share asked for; 0 where it adds nothing


def scale_branches(weights: Weights, sites: Sequence[AttentionSite], share: float) -> None:
    """Multiply values and outputs of every layer by √factor, with their biases, so that rms(branch) = share · rms(x).

    Measured in two forward passes, on the overlay's batch or on what the host library offers.

    Raises:
        StructuredInitError: there is no batch, and the host library offers none; a layer does not run on it, or adds
            nothing to a residual stream.
    """
    part, inputs, known = weights.model, as_inputs(weights.batch), "the batch"
    if weights.batch is None:
        offered = what_the_host_offers(weights, CONTEXT)
        if offered is None:
            raise StructuredInitError("the share of the stream is measured in a forward pass: give a batch, as batch=…")
        (part, inputs), known = offered, "random tokens or pixels"
    run = partial(_run, weights, sites, part, inputs)
    ways = _ways_to_the_stream(run)
    for site in sites:
        if site.name not in ways:
            raise StructuredInitError(
                f"'{site.name}' does not run on {known}: its share of the stream cannot be measured"
            )
    found = _measured(run, ways, share)
    for site in weights.each(sites):
        branch = found[site.name]
        if not branch.factor:
            raise StructuredInitError(
                f"'{site.name}' adds nothing to the residual stream, so no factor gives it the share asked for"
            )
        of_value = 1.0 if site.layout.value_norm else math.sqrt(branch.factor)  # a norm between them takes it away
        of_output = branch.factor / of_value
        if site.write_value_output(of_value * site.value, of_output * site.output):
            _scale_biases(weights, site, of_value, branch.factor)
    for site in sites:
        branch = found[site.name]
        scaled = f"outputs times {branch.factor:.2g}"
        if not site.layout.value_norm:
            scaled = f"values and outputs times {math.sqrt(branch.factor):.2g}"
        site.note(
            f"scaled so that it puts out {share:g} times the stream, before any norm, gate or LayerScale behind it; the"
            f" stream's root mean square is {branch.stream:.2g} (measured on {known}); {scaled}"
        )


def _scale_biases(weights: Weights, site: AttentionSite, of_value: float, factor: float) -> None:
    """Multiply biases that are not zero: of values as their weights, of outputs by factor, as the whole branch is."""
    value, by = projection_bias(weights.model, site.layout.value), "Mimetic: value_output"
    if value is not None and value.get(weights).any():
        value.set(weights, of_value * value.get(weights), by)
    held = {id(piece.weight) for piece in pieces(site.layout.output)}
    for own in (each._parameters for each in weights.modules.values()):
        bias = own.get("bias")
        if id(own.get("weight")) in held and bias is not None and weights.read(bias).any():
            weights.write(bias, factor * weights.read(bias), by)


@dataclass(frozen=True)
class _Way:
    """From a layer's output back to the stream that it is added to, as a first pass shows it."""

    steps: list[int]
    stream: Made
    rms: float  # of the stream


Leave = Callable[[str, nn.Module, tuple, Any], Any]


def _run(
    weights: Weights,
    sites: Sequence[AttentionSite],
    part: nn.Module,
    inputs: Inputs,
    residuals: Residuals,
    leave: Leave,
) -> None:
    """Run the planned network once, with a hook on what every layer puts out."""
    with ExitStack() as stack:
        for site in sites:
            module = last_module(site, weights.modules)
            stack.callback(module.register_forward_hook(partial(leave, site.name)).remove)
        run_planned(weights, inputs, part, residuals)


def _ways_to_the_stream(run: Callable[[Residuals, Leave], None]) -> dict[str, _Way]:
    """Return for every layer that runs what its output is added to.

    Raises:
        StructuredInitError: that is nothing which the output was made of.
    """
    ways: dict[str, _Way] = {}
    ran: list[str] = []

    def enter(name: str, stream: Tensor, out: Made, _: Callable) -> None:
        known = residuals.made(stream)
        ways.setdefault(name, _Way(out.steps_to(known) or [], known, rms_of(stream)))

    def leave(name: str, _: nn.Module, __: tuple, output: Any) -> None:
        residuals.puts_out(name, next(tensors(output)))
        ran.append(name)

    residuals = Residuals(enter)
    run(residuals, leave)
    for name in ran:
        if name not in ways:
            raise StructuredInitError(
                f"what '{name}' puts out is added to nothing that it was made of, so its share of the stream cannot be"
                " measured: use value_scale='target'"
            )
    return ways


def _measured(run: Callable[[Residuals, Leave], None], ways: Mapping[str, _Way], share: float) -> dict[str, Branch]:
    """Return what every branch must be multiplied with, by layer; the factor is in effect in all runs of the layer.

    Each branch enters the pass as large as it is to be, so that later layers see the stream that they will have. The
    stream is looked up before the output is added to it: the way back to it is the same as in the first pass.
    """
    found: dict[str, Branch] = {}

    def leave(name: str, _: nn.Module, __: tuple, output: Any) -> Any:
        branch, way = next(tensors(output)), ways[name]
        out = residuals.puts_out(name, branch)
        if name not in found:
            # Of what the model is given, no operation tells.
            size, own = way.rms if way.stream.kind is None else out.back(way.steps).rms, rms_of(branch)
            found[name] = Branch(size, share * size / own if own else 0.0)
        branch = branch * found[name].factor
        return branch if isinstance(output, Tensor) else type(output)((branch, *output[1:]))

    residuals = Residuals(lambda *_: None, frozenset(way.stream.kind for way in ways.values()))
    run(residuals, leave)
    return found


def last_module(site: AttentionSite, modules: Mapping[str, nn.Module]) -> nn.Module:
    """The module that puts out the branch: the output projection, which some hosts keep outside, or the layer."""
    if isinstance(site.module, nn.MultiheadAttention) or isinstance(site.layout.output, JoinedProjection):
        return site.module  # the projection is no module that is called, or several
    return owner_of(site.layout.output.weight, modules.values(), site.module)


def tensors(given: Any) -> Iterator[Tensor]:
    """Yield the activations in what a module takes or returns: floating-point tensors of two axes or more."""
    if isinstance(given, Tensor):
        if given.is_floating_point() and given.ndim > 1:
            yield given
    elif isinstance(given, tuple | list):
        for each in given:
            yield from tensors(each)


# Where in a pass a layer's output is added to the residual stream: to what it was itself made of.

SUMS = frozenset({"add", "add_", "addcmul", "addcmul_"})


@dataclass(eq=False)
class Made:
    """How a tensor came about."""

    of: Sequence[Made] = ()
    number: int = 0  # how many others were made before; 0 of parameters and of what the model is given
    kind: tuple[str, torch.Size] | None = None  # the operation that made it, and its shape
    branches: dict[Made, str] = field(default_factory=dict)  # outputs in it that were added to no stream yet → layer
    rms: float | None = None  # where it was asked for

    def back(self, steps: Sequence[int]) -> Made:
        """Return what some steps (see :meth:`steps_to`) lead to."""
        return self.of[steps[0]].back(steps[1:]) if steps else self

    def steps_to(self, origin: Made) -> list[int] | None:
        """Return which way leads back to what this was made of; ``None`` where it was not made of that."""
        ahead: list[tuple[Made, list[int]]] = [(self, [])]
        seen: set[Made] = set()
        for here, steps in ahead:
            if here is origin:
                return steps
            if here not in seen and here.number > origin.number:
                seen.add(here)
                ahead += [(each, [*steps, place]) for place, each in enumerate(here.of)]
        return None


class Residuals(TorchDispatchMode):
    """Follow what layers put out to the sum with what it was made of, and tell ``found`` before that sum is taken.

    ``found`` is given the layer, the other term, which is the stream, the output, and what returns what is added: the
    output, behind any gate or norm. Of tensors of the ``kinds`` given the root mean square is kept.
    """

    supports_higher_order_operators = True

    def __init__(self, found: Callable[[str, Tensor, Made, Callable], None], kinds: frozenset = frozenset()) -> None:
        super().__init__()
        self._found, self._kinds, self._count = found, kinds, 0
        self._made: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def made(self, tensor: Tensor) -> Made:
        """Return how a tensor was made."""
        return self._made.setdefault(tensor, Made())

    def puts_out(self, layer: str, output: Tensor) -> Made:
        """Take note that a tensor is what a layer puts out."""
        out = self.made(output)
        self._made[output] = Made((out,), out.number, out.kind, {**out.branches, out: layer})
        return out

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204 - torch's own signature
        kwargs, name = kwargs or {}, getattr(getattr(func, "_schema", None), "name", "").rpartition("::")[2]
        given = [leaf for leaf in held((args, kwargs)) if not is_traceable_wrapper_subclass(leaf)]
        of = [self.made(leaf) for leaf in given]
        branches = {out: layer for each in of for out, layer in each.branches.items()}
        if name in SUMS and branches:
            for stream, own in zip(given, of, strict=True):
                for out in [out for out in branches if out not in own.branches and self._like(stream, given)]:
                    if out.steps_to(own) is not None:
                        self._found(branches.pop(out), stream, out, partial(_without, stream, func, args, kwargs))
        result = func(*args, **kwargs)
        self._count += 1
        for each in held(result):
            if not is_traceable_wrapper_subclass(each):
                made = self._made[each] = Made(of, self._count, (name, each.shape), branches)
                made.rms = rms_of(each) if made.kind in self._kinds else None
        return result

    @staticmethod
    def _like(stream: Tensor, given: list[Tensor]) -> bool:
        """Say whether a term is as large as every other, as a bias or a scale for each channel is not."""
        return stream.ndim > 1 and stream.numel() == max(each.numel() for each in given)


def _without(term: Tensor, func: Callable[..., Tensor], args: tuple, kwargs: dict[str, Any]) -> Tensor:
    """Return what a sum is without one of its terms."""
    args, kwargs = tree_map(lambda leaf: torch.zeros_like(leaf) if leaf is term else leaf, (args, kwargs))
    return func(*args, **kwargs)


def rms_of(weight: Tensor) -> float:
    """Return the root mean square of all numbers, summed in float64."""
    return torch.linalg.vector_norm(weight, dtype=torch.float64).item() / math.sqrt(weight.numel())

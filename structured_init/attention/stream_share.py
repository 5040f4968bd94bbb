"""How large the branch of attention is beside the stream that it is added to, and what makes it a given share.

Letters: D embed_dim, x the stream, x̂ what attention reads of it after its norm.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

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
PASSES = 4  # two where both do the same; a cache that the first fills is not made in the second


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
    gaps, found = _measured(weights, sites, part, inputs, share)
    for site in sites:
        if site.name not in gaps:
            raise StructuredInitError(
                f"what '{site.name}' puts out on {known}, if anything, is added to nothing that it was made of, so its"
                " share of the stream cannot be measured: use value_scale='target'"
            )
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


def _measured(
    weights: Weights, sites: Sequence[AttentionSite], part: nn.Module, inputs: Inputs, share: float
) -> tuple[dict[str, int], dict[str, Branch]]:
    """Return by layer where its stream is, and what the branch must be multiplied with in all runs of the layer.

    A pass shows to which tensor every output is added: how many tensors were made between the two. In the next this
    tensor is known before, so each branch enters the stream as large as it is to be, and later layers see the stream
    that they will have.
    """
    gaps: dict[str, int] = {}
    for _ in range(PASSES):
        before = gaps
        gaps, found = _measure_once(weights, sites, part, inputs, before, share)
        if gaps == before:
            return gaps, found
    raise StructuredInitError(
        f"no two of {PASSES} forward passes do the same, so the share of the stream cannot be measured"
    )


def _measure_once(
    weights: Weights,
    sites: Sequence[AttentionSite],
    part: nn.Module,
    inputs: Inputs,
    known: Mapping[str, int],
    share: float,
) -> tuple[dict[str, int], dict[str, Branch]]:
    """Run the planned network once, in which a branch is scaled if it is known where its stream is.

    Return how many tensors were made after the stream until a layer put out, in its first run, and what a layer's
    output was multiplied with, both by layer.
    """
    gaps: dict[str, int] = {}
    found: dict[str, Branch] = {}

    def enter(name: str, stream: Tensor, out: Made, _: Callable) -> None:
        gaps.setdefault(name, out.number - residuals.made(stream).number)

    def leave(name: str, _: nn.Module, __: tuple, output: Any) -> Any:
        branch = next(tensors(output))
        out = residuals.puts_out(name, branch)
        if name not in found:
            found[name] = Branch(stream=0.0, factor=1.0)
            if name in known:
                found[name] = _branch(residuals.tensor(out.number - known[name]), rms_of(branch), share)
        branch = branch * found[name].factor
        return branch if isinstance(output, Tensor) else type(output)((branch, *output[1:]))

    residuals = Residuals(enter)
    with ExitStack() as stack:
        for site in sites:
            module = last_module(site, weights.modules)
            stack.enter_context(module.register_forward_hook(partial(leave, site.name)))
        run_planned(weights, inputs, part, residuals)
    return gaps, found


def _branch(stream: Tensor | None, own: float, share: float) -> Branch:
    size = 0.0 if stream is None or not stream.is_floating_point() else rms_of(stream)
    return Branch(size, share * size / own if own else 0.0)


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


@dataclass(frozen=True, eq=False)
class Made:
    """How a tensor came about."""

    number: int  # how many were made before
    of: int  # bits of the numbers of all that it was made of
    branches: Mapping[Made, str]  # outputs in it that were added to no stream yet → layer


class Residuals(TorchDispatchMode):
    """Follow what layers put out to the sum with what it was made of, and tell ``found`` before that sum is taken.

    ``found`` is given the layer, the other term, which is the stream, the output, and what returns what is added: the
    output, behind any gate or norm.
    """

    supports_higher_order_operators = True

    def __init__(self, found: Callable[[str, Tensor, Made, Callable], None]) -> None:
        super().__init__()
        self._found, self._count = found, 0
        self._made: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._tensors: WeakValueDictionary[int, Tensor] = WeakValueDictionary()  # by number

    def made(self, tensor: Tensor) -> Made:
        """Return how a tensor was made; of what the model is given and of parameters, that it was made of nothing."""
        return self._made[tensor] if tensor in self._made else self._make(tensor, [], {})

    def tensor(self, number: int) -> Tensor | None:
        """Return the tensor that was made as the ``number``-th; ``None`` where it is gone."""
        return self._tensors.get(number)

    def puts_out(self, layer: str, output: Tensor) -> Made:
        """Take note that a tensor is what a layer puts out."""
        out = self.made(output)
        self._made[output] = Made(out.number, out.of, {**out.branches, out: layer})
        return out

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204 - torch's own signature
        kwargs, name = kwargs or {}, getattr(getattr(func, "_schema", None), "name", "").rpartition("::")[2]
        given = [leaf for leaf in held((args, kwargs)) if not is_traceable_wrapper_subclass(leaf)]
        of = [self.made(leaf) for leaf in given]
        branches = {out: layer for each in of for out, layer in each.branches.items()}
        if name in SUMS and branches:
            for stream, own in zip(given, of, strict=True):
                for out in [out for out in branches if out not in own.branches and self._like(stream, given)]:
                    if out.of >> own.number & 1:
                        self._found(branches.pop(out), stream, out, partial(_without, stream, func, args, kwargs))
        result = func(*args, **kwargs)
        for each in held(result):
            if not is_traceable_wrapper_subclass(each):
                self._make(each, of, branches)
        return result

    def _make(self, tensor: Tensor, of: Sequence[Made], branches: Mapping[Made, str]) -> Made:
        bits = functools.reduce(operator.or_, (each.of | 1 << each.number for each in of), 0)
        made = self._made[tensor] = Made(self._count, bits, branches)
        self._tensors[self._count] = tensor
        self._count += 1
        return made

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

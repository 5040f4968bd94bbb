"""How large the branch of attention is beside the stream that it is added to, and what makes it a given share.

Letters: D embed_dim, x the stream, x̂ what attention reads of it after its norm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from structured_init.attention.forward import run_planned, something_to_run
from structured_init.errors import StructuredInitError
from structured_init.host_inputs import Inputs
from structured_init.layout import JoinedProjection
from structured_init.names import named_plain_modules
from structured_init.plan import Weights
from structured_init.sites.attention import AttentionSite
from structured_init.sites.mlp import MlpSite, mlp_sites
from structured_init.sites.mlp_rule import within
from structured_init.sites.position_rule import block_around, is_stack
from structured_init.sites.stream import norm_weight, stream_into

CONTEXT = 128  # tokens of a text that the host library offers, if it takes as many: branches average over them

COMPUTED = {
    "embeddings": "computed from embeddings",
    "patches": "computed from patches of mean square 1",
    "assumed": "assumed: give a batch, as batch=…, to measure it",
}


@dataclass(frozen=True)
class Branch:
    """One attention layer between the stream and what it adds.

    Attributes:
        stream: root mean square of x.
        factor: on what the layer adds, for it to be the share asked for; 0 where it adds nothing.
        known: how: "measured on the batch", measured, on what, or computed, from what.
    """

    stream: float
    factor: float
    known: str


def branches(weights: Weights, sites: Sequence[AttentionSite], share: float) -> dict[str, Branch]:
    """Return what every branch must be multiplied with, by layer, so that rms(branch) = share · rms(x).

    One forward pass, on the overlay's batch or on what the host library offers; each branch enters it as large as it
    is to be, so that later layers see the stream that they will have. Where there is nothing to run, it is computed.

    Args:
        weights: the overlay, with everything else already planned.
        sites: the layers.
        share: of the stream.
    """
    found = something_to_run(weights, CONTEXT)
    if found is None:
        return dict(_computed(weights, sites, share))
    part, inputs = found
    known = "random tokens or pixels" if weights.batch is None else "the batch"
    measured = _measured(weights, sites, share, part, inputs)
    missing = next((site.name for site in sites if site.name not in measured), None)
    if missing is not None:
        raise StructuredInitError(f"'{missing}' does not run on {known}: its share of the stream cannot be measured")
    return {name: Branch(*values, f"measured on {known}") for name, values in measured.items()}


def scale_branches(weights: Weights, sites: Sequence[AttentionSite], share: float) -> None:
    """Multiply values and outputs of every layer by √factor, and say in the report what was found."""
    found = branches(weights, sites, share)
    for site in weights.each(sites):
        branch = found[site.name]
        if not branch.factor:
            raise StructuredInitError(
                f"'{site.name}' adds nothing to the residual stream, so no factor gives it the share asked for"
            )
        root = math.sqrt(branch.factor)
        site.write_value_output(root * site.value, root * site.output)
        site.note(
            f"adds {share:g} times the stream, whose root mean square is {branch.stream:.2g} ({branch.known}): values"
            f" and outputs times {root:.2g}"
        )


def _measured(
    weights: Weights, sites: Sequence[AttentionSite], share: float, part: nn.Module, inputs: Inputs
) -> dict[str, tuple[float, float]]:
    """Return rms(x) and factor of every layer that is run."""
    modules = dict(named_plain_modules(weights.model))
    stacks = {name for name, module in modules.items() if is_stack(module)}
    entered: dict[str, float] = {}
    found: dict[str, tuple[float, float]] = {}

    def enter(name: str) -> Any:
        def hook(module: nn.Module, args: tuple, kwargs: dict) -> None:
            entered[name] = _rms(next(tensors((args, *kwargs.values()))))

        return hook

    def leave(name: str) -> Any:
        def hook(module: nn.Module, args: tuple, output: Any) -> Any:
            branch = next(tensors(output))
            size = _rms(branch)
            found[name] = entered[name], (share * entered[name] / size if size else 0.0)
            return _with_first(output, branch * found[name][1])

        return hook

    with ExitStack() as stack:
        for site in sites:
            block, last = modules[block_around(site.name, stacks)], last_module(site, modules)
            stack.callback(block.register_forward_pre_hook(enter(site.name), with_kwargs=True).remove)
            stack.callback(last.register_forward_hook(leave(site.name)).remove)
        run_planned(weights, inputs, part)
    return found


def last_module(site: AttentionSite, modules: Mapping[str, nn.Module]) -> nn.Module:
    """The module that puts out the branch: the output projection, which some hosts keep outside, or the layer."""
    if isinstance(site.module, nn.MultiheadAttention) or isinstance(site.layout.output, JoinedProjection):
        return site.module  # the projection is no module that is called, or several
    weight = site.layout.output.weight
    owners = (module for module in modules.values() if any(each is weight for each in module._parameters.values()))
    return next(owners, site.module)


def scale_heads(site: AttentionSite, heads: Iterable[int], factor: float) -> None:
    """Multiply what some heads of a layer add."""
    if factor != 1:
        output = site.output
        output[list(heads)] *= factor
        site.output = output


def scale_mlp(site: AttentionSite, weights: Weights, factor: float, by: str) -> bool:
    """Multiply the last matrix of the MLP in the layer around an attention layer, and its bias; say if it is known."""
    if factor == 1:
        return True
    modules = dict(named_plain_modules(weights.model))
    block = block_around(site.name, {name for name, module in modules.items() if is_stack(module)})
    found = [each for each in mlp_sites(weights) if within(each.name, block)]
    for mlp in found:
        first = {id(each.weight) for each in (mlp.layout.first, mlp.layout.gate) if each is not None}
        inside = [module for name, module in named_plain_modules(mlp.module) if not within(name, _relative(site, mlp))]
        last = [
            module
            for module in inside
            for weight in module._parameters.values()
            if weight is not None and weight.ndim == 2 and site.embed_dim in weight.shape and id(weight) not in first
        ]
        if len(found) != 1 or len(last) != 1:
            return False
        for parameter in last[0]._parameters.values():
            if parameter is not None:
                weights.edit(parameter, by).mul_(factor)
    return bool(found)


def _relative(site: AttentionSite, mlp: MlpSite) -> str:
    """The name of an attention layer within the module that holds an MLP, or one that nothing has."""
    inside = within(site.name, mlp.name) and site.name != mlp.name
    return site.name.removeprefix(f"{mlp.name}.") if inside else "-"


def _computed(weights: Weights, sites: Sequence[AttentionSite], share: float) -> Iterator[tuple[str, Branch]]:
    """Yield the same without running: embeddings and the branches before, and tokens that look at themselves.

    rms(x_ℓ)² = rms(x_0)² (1 + share²)^ℓ, but 1 where norms stand behind the branches, and rms(branch) = ‖W_v W_o‖ / √D
    for x̂ of mean square 1. Attention to many tokens averages, so the branch is smaller then.
    """
    for number, site in enumerate(sites):
        into = stream_into(site, weights)
        stream = 1.0 if into.normalized else into.rms * (1 + share**2) ** (number / 2)
        gamma = norm_weight(site, weights)
        value, output = site.value.double(), site.output.double()
        value = value if gamma is None else gamma[:, None] * value
        product = (value.repeat_interleave(len(output) // len(value), dim=0) @ output).sum(dim=0)
        size = product.norm().item() / math.sqrt(site.embed_dim)
        yield site.name, Branch(stream, share * stream / size if size else 0.0, COMPUTED[into.known])


def tensors(given: Any) -> Iterator[Tensor]:
    """Yield the activations in what a module takes or returns: floating-point tensors of two axes or more."""
    if isinstance(given, Tensor):
        if given.is_floating_point() and given.ndim > 1:
            yield given
    elif isinstance(given, tuple | list):
        for each in given:
            yield from tensors(each)


def _with_first(output: Any, branch: Tensor) -> Any:
    """Return what a module returned with another branch in it."""
    return branch if isinstance(output, Tensor) else type(output)((branch, *output[1:]))


def _rms(activations: Tensor) -> float:
    return torch.linalg.vector_norm(activations, dtype=torch.float64).item() / math.sqrt(activations.numel())

"""Running a model, or a part of it, with everything planned so far in effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from structured_init.hosts.watched import cannot_run
from structured_init.hosts.watching.mode import passing
from structured_init.hosts.watching.records import MapAt
from structured_init.hosts.watching.taps import MapTap
from structured_init.inputs import Inputs, find_runnable, host_inputs, run_with
from structured_init.undisturbed import norms_as_in_training, undisturbed
from structured_init.weights import Weights


def what_the_host_offers(weights: Weights, length: int, batch: int = 2) -> tuple[nn.Module, Inputs] | None:
    """Return the model, or its first part, that the host library has inputs for; ``None`` where there is none."""
    if cannot_run(weights.model):
        return None
    for module in weights.model.modules():  # a LightningModule holds a network, which may hold a transformer
        if (inputs := host_inputs(module, batch=batch, length=length)) is not None:
            return module, inputs
    return None


def run_planned(
    weights: Weights,
    inputs: Inputs,
    part: nn.Module | None = None,
    inside: AbstractContextManager[object] | None = None,
) -> None:
    """Run once, in evaluation mode and without gradients; who wants to see something hangs hooks in.

    Batch norms that have seen no batch take the statistics of this one. ``part`` is run in the model's
    place; ``inside`` is entered for the pass.
    """
    part = find_runnable(weights.model if part is None else part)
    device = next(part.parameters()).device
    moved, values = tree_map_only(Tensor, lambda leaf: leaf.to(device), inputs), _planned(weights)
    try:
        # A layer's call is repeated often: no more is done around it than it needs.
        with norms_as_in_training(part), undisturbed(part), inside or nullcontext():
            run_with(part, values, moved)
    finally:
        for module in part.modules():
            if hasattr(module, "reshard"):  # FSDP2 leaves the outermost gathered: writes go to shards
                module.reshard()


def planned_maps(
    weights: Weights, layers: Mapping[str, Sequence[MapAt]], inputs: Inputs, part: nn.Module | None = None
) -> dict[str, Float[Tensor, "samples heads queries keys"]]:
    """Run once with everything planned so far; return the maps of layers of which it is known where they are computed.

    Windows count as samples.
    """
    part = weights.model if part is None else part
    tap = MapTap({place.product: place.is_left for places in layers.values() for place in places})
    run_planned(weights, inputs, part, passing(part, tap))
    maps = {}
    for name, places in layers.items():
        of_heads = [place.arranged(tap.maps[place.product]) for place in places]
        maps[name] = torch.cat(of_heads, dim=1).cpu()
    return maps


def _planned(weights: Weights) -> dict[int, Tensor]:
    """Return the planned values that are not in the model yet: all of them in a dry run, else those of this layer.

    Parameters stay parameters, which is how they are known to whoever watches, and ask for gradients as before: on that
    depends which products torch takes.
    """
    lent: dict[int, Tensor] = {}
    for update in weights.updates.values():
        target, value = update.target, update.value
        if value is None:
            continue
        value = value.to(target.device, target.dtype)
        if isinstance(target, nn.Parameter):
            value = nn.Parameter(value, requires_grad=target.requires_grad)
        lent[id(target)] = value
    return lent


def owner_of(weight: Tensor, modules: Iterable[nn.Module], default: nn.Module) -> nn.Module:
    """Return the first module that holds a parameter itself, or ``default`` where none does."""
    return next((each for each in modules if any(own is weight for own in each._parameters.values())), default)

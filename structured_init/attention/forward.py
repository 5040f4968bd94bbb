"""Running a model, or a part of it, with everything planned so far in effect."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map

from structured_init.host_inputs import Inputs
from structured_init.plan import Weights
from structured_init.undisturbed import undisturbed


def run_planned(weights: Weights, inputs: Inputs, part: nn.Module | None = None) -> None:
    """Run once, in evaluation mode and without gradients; who wants to see something hangs hooks in.

    Args:
        weights: the overlay.
        inputs: positional and named arguments; tensors are moved to the model's device.
        part: a module of the model to run in its place.
    """
    part = weights.model if part is None else part
    device = next(part.parameters()).device

    def moved(leaf: Any) -> Any:
        return leaf.to(device) if isinstance(leaf, Tensor) else leaf

    try:
        with undisturbed(weights.model):
            functional_call(part, _planned(weights, part), *tree_map(moved, inputs))
    finally:
        _reshard(weights.model)


def _planned(weights: Weights, part: nn.Module) -> dict[str, Tensor]:
    """Return the planned values that are not in the model yet: all of them in a dry run, else those of this layer."""
    names = {id(tensor): name for name, tensor in (*part.named_parameters(), *part.named_buffers())}
    return {
        names[id(update.target)]: update.value.to(update.target.device, update.target.dtype)
        for update in weights.updates.values()
        if update.value is not None and id(update.target) in names
    }


def _reshard(model: nn.Module) -> None:
    """Let go of the parameters that FSDP2 leaves gathered in the outermost module: writes go to the sharded ones."""
    for module in model.modules():
        if any(cls.__name__ == "FSDPModule" for cls in type(module).__mro__):
            module.reshard()

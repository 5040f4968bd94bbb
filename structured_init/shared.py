"""What the report says of weights that several places share, and of numbers that others were computed from."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from torch import Tensor, nn

from structured_init.layout import overlap
from structured_init.names import named_plain_modules
from structured_init.plan import Weights

DORA = "lora_magnitude_vector"  # peft's DoRA: ‖W + ΔW‖ of each output, computed once, when the adapter is put in


def note_shared(weights: Weights) -> None:
    """Note every tensor that was set and has several names, and layers that are run several times (ALBERT)."""
    for update in weights.updates.values():
        names = weights.names(update.target)
        if update.by and len(names) > 1 and not _several_roles(weights, update.target):
            weights.note(names[0], f"shared with {', '.join(names[1:])}: the last start written to one is that of all")
    for name, module in named_plain_modules(weights.model):
        config = getattr(module, "config", None)
        layers, groups = (getattr(config, key, None) for key in ("num_hidden_layers", "num_hidden_groups"))
        if not isinstance(layers, int) or not isinstance(groups, int) or groups >= layers:
            continue
        runs_them = any(isinstance(child, nn.ModuleList) and len(child) == groups for child in module.children())
        if runs_them and _was_set(weights, module):
            weights.note(
                name, f"its {layers} layers share {groups} set(s) of weights: one initialization for all that share"
            )


def _several_roles(weights: Weights, target: Tensor) -> bool:
    """Say whether numbers of a tensor are two matrices of attention, such as keys and values: the site says so."""
    pairs = combinations(weights.roles.get(id(target), {}).values(), 2)
    return any(
        one.matrix != two.matrix and overlap(getattr(one.layout, one.matrix), getattr(two.layout, two.matrix))
        for one, two in pairs
    )


def stale_magnitudes(weights: Weights) -> Iterator[str]:
    """Warn of every DoRA magnitude whose weight was set without it; known by its structure, whatever its class."""
    for name, module in named_plain_modules(weights.model):
        magnitude, base = (getattr(module, key, None) for key in (DORA, "base_layer"))
        if not isinstance(magnitude, nn.Module) or not isinstance(base, nn.Module):
            continue
        own = list(magnitude.parameters())
        if own and _was_set(weights, base) and not all(_is_set(weights, parameter) for parameter in own):
            yield (
                f"'{name}.{DORA}' was computed from the weight that was overwritten and no longer is its norm:"
                " initialize before DoRA is put in, or compute it anew"
            )


def _was_set(weights: Weights, module: nn.Module) -> bool:
    return any(_is_set(weights, parameter) for parameter in module.parameters())


def _is_set(weights: Weights, parameter: nn.Parameter) -> bool:
    update = weights.updates.get(id(parameter))
    return update is not None and bool(update.by)

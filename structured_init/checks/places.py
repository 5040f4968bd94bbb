"""What each parameter of a model is for, from the layer that holds it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.parametrize import type_before_parametrizations as class_of

from structured_init.analysis.blocks import blocks_of
from structured_init.hosts.state_space import state_space_sites
from structured_init.util.names import named_plain_modules

STATE_SPACE = {"A_log": "decay", "dt_bias": "step", "D": "skip"}


@dataclass(frozen=True)
class Place:
    """Where a parameter stands."""

    # "weight", "bias", "norm", "norm bias", "embedding", "recurrent", "attention input" (fused, of
    # nn.MultiheadAttention), "decay", "step", "skip" (of state-space layers) or "bare": a parameter of no known
    # layer, such as positions
    role: str
    fan_in: int = 0  # numbers that go into one output of its layer; for a bias, those of its weight
    fan_out: int = 0  # outputs that one number of the input goes into, as torch.nn.init counts them
    groups: int = 1  # of a convolution
    layers: int = 0  # in how many blocks the network is deep; 0 of a filter, and where it is not known
    std: float = 0.02  # the standard deviation that the host is configured with (initializer_range of transformers)
    stacked: int = 0  # bare, of three axes: so many matrices, of heads or experts; which fan is which is not known
    width: int = 0  # of a recurrent state, whose root torch divides by, not fan_in's
    padding: int | None = None  # of an embedding: the row of the padding token


def places(model: nn.Module) -> dict[int, Place]:
    """Return the place of every parameter, by its id; the first layer that holds a tied one counts."""
    std, layers = _configured_std(model), _num_layers(model)
    state_space = {}
    for site in state_space_sites(model):
        state_space |= {id(getattr(site.layout, key)): role for key, role in STATE_SPACE.items()}
    found: dict[int, Place] = {}
    for name, module in named_plain_modules(model):
        for key, parameter in (*_computed_from(module).items(), *module._parameters.items()):
            if parameter is None or id(parameter) in found:
                continue
            role, fans = state_space.get(id(parameter)) or _role(name, key, module), _fans(module)
            several = role == "bare" and parameter.ndim == 3 and math.prod(parameter.shape[1:]) > 1
            if several or (role in ("bare", "weight", "recurrent", "attention input") and fans is None):
                shape = parameter.shape[1:] if several else parameter.shape
                fans = (math.prod(shape[1:]), shape[0] if shape else 1)
            fan_in, fan_out = fans or (0, 0)
            found[id(parameter)] = Place(
                role,
                fan_in,
                fan_out,
                groups=getattr(module, "groups", 1),
                layers=layers if role == "bare" or math.prod(parameter.shape[2:]) == 1 else 0,
                std=std,
                stacked=len(parameter) if several else 0,
                width=module.hidden_size if role == "recurrent" else 0,
                padding=getattr(module, "padding_idx", None),
            )
    return found


def _configured_std(model: nn.Module) -> float:
    for _, module in named_plain_modules(model):
        std = getattr(getattr(module, "config", None), "initializer_range", None)
        if isinstance(std, float) and std > 0:
            return std
    return Place.std


def _num_layers(model: nn.Module) -> int:
    """Return how many layers a network has: what its configuration says, else its repeated blocks, else 0."""
    for _, module in named_plain_modules(model):
        for key in ("num_hidden_layers", "n_layer", "num_layers"):
            value = getattr(getattr(module, "config", None), key, None)
            if isinstance(value, int) and value > 0:
                return value
    return len(blocks_of(model))


def _role(name: str, key: str, module: nn.Module) -> str:
    kind = type(module).__name__.lower()
    if key in STATE_SPACE:
        return STATE_SPACE[key]
    if key == "bias" and name.rpartition(".")[2] == "dt_proj":
        return "step"  # in Mamba-1 it is the bias of a linear layer
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return "recurrent"
    if isinstance(module, nn.MultiheadAttention):
        return "attention input" if key.endswith("weight") else "bias" if key.endswith("bias") else "bare"
    if "norm" in kind or "layerscale" in kind.replace("_", ""):
        return "norm bias" if key.endswith("bias") else "norm"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return "embedding"
    if key.endswith("bias") and _fans(module) is not None:
        return "bias"
    return "weight" if key == "weight" and _fans(module) is not None else "bare"


def _computed_from(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameter that is drawn as each weight which torch norms or otherwise computes, by its name."""
    found = {"weight": module._parameters.get("weight_v", module._parameters.get("weight_orig"))}  # as torch did once
    for key, parts in module.parametrizations.items() if is_parametrized(module) else ():
        found[key] = parts.original1 if isinstance(parts[0], _WeightNorm) else getattr(parts, "original", None)
    return {key: each for key, each in found.items() if each is not None}


def _fans(module: nn.Module) -> tuple[int, int] | None:
    """Return fan_in and fan_out of a layer with a weight of two or more axes."""
    own = module._parameters | _computed_from(module)  # to ask for a computed weight may change it
    weight = own.get("in_proj_weight" if isinstance(module, nn.MultiheadAttention) else "weight")
    if not isinstance(weight, nn.Parameter) or weight.ndim < 2:
        return None
    receptive = math.prod(weight.shape[2:])
    inputs, outputs = weight.shape[1] * receptive, weight.shape[0] * receptive
    transposed = class_of(module).__name__ == "Conv1D" and weight.ndim == 2  # of transformers, stored (in, out)
    return (outputs, inputs) if transposed else (inputs, outputs)

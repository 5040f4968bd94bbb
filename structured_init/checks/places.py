"""What each parameter of a model is for, from the layer that holds it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations as class_of

from structured_init.analysis.blocks import blocks_of
from structured_init.util.names import named_plain_modules

STATE_SPACE = {"A_log": "decay", "dt_bias": "step", "D": "skip"}  # as every library calls them


@dataclass(frozen=True)
class Place:
    """Where a parameter stands."""

    # "weight", "bias", "norm", "norm bias", "embedding", "decay", "step", "skip" (of state-space layers) or "bare": a
    # parameter of no known layer, such as positions
    role: str
    fan_in: int = 0  # numbers that go into one output of its layer; for a bias, those of its weight
    fan_out: int = 0  # outputs that one number of the input goes into, as torch.nn.init counts them
    groups: int = 1  # of a convolution
    layers: int = 0  # in how many blocks the network is deep; 0 of a filter, and where it is not known
    std: float = 0.02  # the standard deviation that the host is configured with (initializer_range of transformers)
    stacked: int = 0  # bare, of three axes: so many matrices, of heads or experts; which fan is which is not known
    padding: int | None = None  # of an embedding: the row of the padding token


def places(model: nn.Module) -> dict[int, Place]:
    """Return the place of every parameter, by its id; the first layer that holds a tied one counts."""
    modules = named_plain_modules(model)
    config = next((each.config for _, each in modules if hasattr(each, "config")), None)  # of transformers
    std = getattr(config, "initializer_range", None) or Place.std
    layers = getattr(config, "num_hidden_layers", None) or len(blocks_of(model))
    found: dict[int, Place] = {}
    for name, module in modules:
        for key, parameter in module.named_parameters(recurse=False):
            role = _role(name, key, module)
            shape = parameter.shape
            stacked = shape[0] if role == "bare" and len(shape) == 3 else 0
            weight = getattr(module, "weight", parameter) if role == "bias" else parameter
            fan_in, fan_out = _fans(module, shape[1:] if stacked else weight.shape)
            place = Place(
                role,
                fan_in,
                fan_out,
                groups=getattr(module, "groups", 1),
                layers=layers if math.prod(shape[2:]) == 1 else 0,
                std=std,
                stacked=stacked,
                padding=getattr(module, "padding_idx", None),
            )
            found.setdefault(id(parameter), place)
    return found


def _role(name: str, key: str, module: nn.Module) -> str:
    kind = type(module).__name__.lower().replace("_", "")
    if key in STATE_SPACE:
        return STATE_SPACE[key]
    if f"{name}.{key}".endswith("dt_proj.bias"):
        return "step"  # in Mamba-1 it is the bias of a linear layer
    if "norm" in kind or "layerscale" in kind:
        return "norm bias" if key.endswith("bias") else "norm"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return "embedding"
    matrices = [part for part, each in module.named_parameters(recurse=False) if each.ndim > 1 and "weight" in part]
    if key in matrices:
        return "weight"
    return "bias" if key.endswith("bias") and matrices else "bare"


def _fans(module: nn.Module, shape: torch.Size) -> tuple[int, int]:
    """Return fan_in and fan_out of a layer with a weight of two or more axes; zeros of any other."""
    if len(shape) < 2:
        return 0, 0
    receptive = math.prod(shape[2:])
    inputs, outputs = shape[1] * receptive, shape[0] * receptive
    transposed = class_of(module).__name__ == "Conv1D"  # of transformers, stored (in, out)
    return (outputs, inputs) if transposed else (inputs, outputs)

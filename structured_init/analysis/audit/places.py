"""What a parameter is for: a weight with its fans, a bias, a norm, an embedding, a step, as its module tells."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from structured_init.analysis.blocks import repeated_blocks
from structured_init.errors import StructuredInitError
from structured_init.names import named_plain_modules

STATE_SPACE = {"A_log": "decay", "dt_bias": "step", "D": "skip"}
STEP_LAYERS = frozenset({"dt_proj"})  # in Mamba-1 the bias of a linear layer is that of the step


@dataclass(frozen=True)
class Place:
    """Where a parameter stands.

    Attributes:
        role: ``"weight"``, ``"bias"``, ``"norm"``, ``"norm bias"``, ``"embedding"``, ``"recurrent"``, ``"attention
            input"`` (fused, of ``nn.MultiheadAttention``), ``"decay"``, ``"step"``, ``"skip"`` (of state-space layers)
            or ``"bare"``: a parameter of no known layer, such as positions.
        fan_in: numbers that go into one output of its layer; for a bias, those of its weight.
        fan_out: outputs that one number of the input goes into, as ``torch.nn.init`` counts them.
        groups: of a convolution.
        layers: in how many blocks the network is deep.
        std: the standard deviation that the host is configured with (``initializer_range`` of transformers).
    """

    role: str
    fan_in: int = 0
    fan_out: int = 0
    groups: int = 1
    layers: int = 1
    std: float = 0.02


def places(model: nn.Module) -> dict[int, Place]:
    """Return the place of every parameter, by its id; the first layer that holds a tied one counts."""
    layers, std = num_layers(model), host_std(model)
    found: dict[int, Place] = {}
    for name, module in named_plain_modules(model):
        for key, parameter in module.named_parameters(recurse=False):
            role, fans = _role(name, key, module), _fans(module)
            if role in ("bare", "weight") and fans is None:
                shape = parameter.shape
                fans = (math.prod(shape[1:]), shape[0] if shape else 1)
            fan_in, fan_out = fans or (0, 0)
            place = Place(role, fan_in, fan_out, getattr(module, "groups", 1), layers, std)
            found.setdefault(id(parameter), place)
    return found


def num_layers(model: nn.Module) -> int:
    """Return how many layers a network has: what its configuration says, else its repeated blocks, else one."""
    for _, module in named_plain_modules(model):
        for key in ("num_hidden_layers", "n_layer", "num_layers"):
            value = getattr(getattr(module, "config", None), key, None)
            if isinstance(value, int) and value > 0:
                return value
    try:
        return len(repeated_blocks(model))
    except StructuredInitError:
        return 1


def host_std(model: nn.Module) -> float:
    """Return the standard deviation in the configuration of a model of transformers, or anywhere inside; else 0.02."""
    for _, module in named_plain_modules(model):
        value = getattr(getattr(module, "config", None), "initializer_range", None)
        if isinstance(value, float) and value > 0:
            return value
    return 0.02


def _role(name: str, key: str, module: nn.Module) -> str:
    kind = type(module).__name__.lower()
    if key in STATE_SPACE:
        return STATE_SPACE[key]
    if key == "bias" and name.rpartition(".")[2] in STEP_LAYERS:
        return "step"
    if isinstance(module, nn.RNNBase):
        return "recurrent"
    if isinstance(module, nn.MultiheadAttention):
        return "bias" if key.endswith("bias") else "attention input"
    if "norm" in kind or "layerscale" in kind.replace("_", ""):
        return "norm bias" if key.endswith("bias") else "norm"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return "embedding"
    if key.endswith("bias") and _fans(module) is not None:
        return "bias"
    return "weight" if key == "weight" and getattr(module, key).ndim > 1 else "bare"


def _fans(module: nn.Module) -> tuple[int, int] | None:
    """Return fan_in and fan_out of a layer with a weight of two or more axes, or of a recurrent one."""
    if isinstance(module, nn.RNNBase):
        return module.hidden_size, module.hidden_size
    weight = getattr(module, "weight", None)
    if isinstance(module, nn.MultiheadAttention) and module.in_proj_weight is not None:
        weight = module.in_proj_weight
    if not isinstance(weight, nn.Parameter) or weight.ndim < 2:
        return None
    receptive = math.prod(weight.shape[2:])
    inputs, outputs = weight.shape[1] * receptive, weight.shape[0] * receptive
    transposed = type(module).__name__ == "Conv1D" and weight.ndim == 2  # of transformers, stored (in, out)
    return (outputs, inputs) if transposed else (inputs, outputs)

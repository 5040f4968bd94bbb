"""What flows into a model's first layer: the embeddings that are added up, how large they are.

Letters: D embed_dim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, linalg, nn

from structured_init.hosts.attention import AttentionSite
from structured_init.util.names import is_stack, outwards, within
from structured_init.weights import Weights

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Stream:
    """The tokens as they reach a model's first layer, positions apart."""

    rms: float  # root mean square of the content; 1 where nothing tells
    known: str  # how: "embeddings", "convolution" (of inputs with mean square 1), "assumed" or "measured"
    normalized: bool = False  # whether a norm follows before the layers, after which the whole has rms 1
    embeddings: list[Tensor] = field(default_factory=list)  # the tables of tokens, the largest first


def stream_into(site: AttentionSite, weights: Weights, positions: Tensor | None = None) -> Stream:
    """Look at what is added up before the layers around an attention layer.

    Embeddings of the tokens' width outside of lists of layers, and parameters that a pass looked up, count with their
    ``embed_scale``; the ``positions`` do not, nor does a table inside of another (a bigram hash). Without any, a
    convolution of the width does, as it would put out pixels of mean square 1 that are unrelated. They are looked for
    in the module that holds the list of layers, then in those around it.
    """
    modules = weights.modules
    stacks = {name for name, module in modules.items() if is_stack(module)}
    parents = [*outwards(site.name)][1:]
    outermost = next((name for name in reversed(parents) if name in stacks), site.name)
    for around in [*outwards(outermost)][1:] or [""]:  # the model's own attention has no other
        outside = {
            name: module
            for name, module in modules.items()
            if (not around or name.startswith(f"{around}."))
            and not any(name != stack and within(name, stack) for stack in stacks)
        }
        normalized = any("embed" in name and _is_norm(module) for name, module in outside.items())
        lookups = [name for name, module in outside.items() if isinstance(module, nn.Embedding)]
        outermost = [name for name in lookups if not any(name != other and within(name, other) for other in lookups)]
        scales = {outside[name].weight: getattr(outside[name], "embed_scale", 1.0) for name in outermost}
        others = (module._parameters.values() for name, module in outside.items() if name not in lookups)
        for bare in (p for own in others for p in own if p is not None and id(p) in weights.seen.one_row):
            scales.setdefault(bare, 1.0)
        tables = [t for t in scales if t is not positions and t.ndim == 2 and t.shape[1] == site.embed_dim]
        if tables:
            tables.sort(key=len, reverse=True)
            rms = math.sqrt(sum((scales[table] * rms_of(weights.read(table))) ** 2 for table in tables))
            return Stream(rms, "embeddings", normalized, tables)
        patches = [module for module in outside.values() if isinstance(module, CONVOLUTIONS)]
        if patches and patches[-1].out_channels == site.embed_dim:
            weight = weights.read(patches[-1].weight)
            return Stream(rms_of(weight) * math.sqrt(weight[0].numel()), "convolution", normalized)
    return Stream(1.0, "assumed")


def _is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower()


def rms_of(weight: Tensor) -> float:
    """Return the root mean square of all numbers, summed in float64."""
    return linalg.vector_norm(weight, dtype=torch.float64).item() / math.sqrt(weight.numel())

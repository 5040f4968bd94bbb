"""ALiBi: a logit that falls off linearly with the distance, by a slope of each head (2108.12409)."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from structured_init.sites.attention import AttentionSite


@dataclass(frozen=True)
class Alibi:
    """The slopes of one attention layer; hosts compute them, so they can be read and not written.

    Attributes:
        slopes: how much the logit falls with each token of distance (H,), positive.
    """

    slopes: Float64[Tensor, " heads"]


def alibi(site: AttentionSite) -> Alibi | None:
    """Read the slopes off the host's own function, ``build_alibi_tensor`` (BLOOM) or ``build_mpt_alibi_tensor`` (MPT).

    ``None`` where the layer's forward takes neither ``alibi`` nor ``position_bias``.
    """
    module = site.module
    file, takes = sys.modules.get(type(module).__module__), inspect.signature(module.forward).parameters
    if "alibi" in takes and callable(build := getattr(file, "build_alibi_tensor", None)):
        biases = build(torch.ones(1, 2, dtype=torch.long), site.num_heads, dtype=torch.float32)
    elif "position_bias" in takes and callable(build := getattr(file, "build_mpt_alibi_tensor", None)):
        biases = build(site.num_heads, 2)
    else:
        return None
    return Alibi(biases.reshape(site.num_heads, 2).double().diff(dim=1)[:, 0])

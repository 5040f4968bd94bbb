"""What is known of an attention layer after a forward pass: its layout and the evidence for it, or why it has none."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from structured_init.layout import AttentionLayout


class NoLayout(Exception):
    """Attention that cannot be described by four matrices; the message says what it is instead."""


def worst(*errors: float) -> float:
    """Return the largest error; one that is not a number is larger than any."""
    return max(errors, key=lambda error: (math.isnan(error), error))


@dataclass(frozen=True)
class Evidence:
    """Relative errors, in Frobenius norm.

    Attributes:
        logits: of the logits; where the host turns or normalizes queries and keys, of what stays the same then.
        outputs: of the outputs.
        factor: what the host multiplies q·k with before the softmax; ``None`` where it could not be measured.
        how: how the logits were compared.
        value_factor: what the host multiplies values with behind their map.
    """

    logits: float
    outputs: float
    factor: float | None
    how: str
    value_factor: float = 1.0

    @property
    def error(self) -> float:
        """The larger of the two."""
        return worst(self.logits, self.outputs)


TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}


@dataclass(frozen=True)
class Turns:
    """How queries and keys are turned: the pair (a, b) of token t by the angle frequency · t.

    Attributes:
        frequencies: of each pair, in radians per token.
        pairs: the two coordinates of each within a head of the layout.
    """

    frequencies: Float64[Tensor, " r"]
    pairs: Int64[Tensor, "r 2"]


@dataclass(frozen=True)
class FoundAttention:
    """One attention layer of a forward pass.

    Attributes:
        name: the innermost module that holds its matrices, e.g. ``"blocks.0.attn"``; where it has no layout, the
            module that was running.
        layout: its matrices; ``None`` where it has none that could be told and checked.
        evidence: predicted against computed logits and outputs; ``None`` without a layout.
        reason: why there is no layout; ``None`` where there is one.
        calls: how many times it ran in the pass.
        length: how many tokens it looks at, those of one window where it has windows; 0 without a layout.
        tokens: a few of the tokens that queries, keys and values are made of, each (tokens, width).
        turns: how queries and keys were seen to be turned by their positions; ``None`` where they were not.
    """

    name: str
    layout: AttentionLayout | None
    evidence: Evidence | None
    reason: str | None
    calls: int = 1
    length: int = 0
    tokens: tuple[Tensor, ...] = field(default=(), repr=False)
    turns: Turns | None = field(default=None, repr=False)

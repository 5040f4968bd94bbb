"""What the block around an attention layer says about it: how its branch is scaled, and whose tokens it looks at."""

from __future__ import annotations

from torch import nn

from structured_init.sites.registry import Registry

CROSS: Registry[str] = Registry()  # class of a block → the name of its attention to other tokens

_SCALES = ("gamma_1", "gamma1", "lambda_1")  # BEiT, EVA, CaiT; XCiT; transformers' BEiT


def is_cross_attention(block: nn.Module | None, child: str) -> bool:
    """Say whether ``child`` of ``block`` attends to other tokens than its own; one class often serves both ways."""
    describe = CROSS.find(block) if block is not None else None
    return describe is not None and describe(block) == child


def layer_scale(block: nn.Module | None) -> float | None:
    """Return the mean |γ| of the block's first LayerScale: a parameter, or a module with one; ``None`` without."""
    if block is None:
        return None
    factors = [getattr(block, name, None) for name in _SCALES]
    for name, child in block.named_children():
        if "layerscale" in type(child).__name__.lower() and name.endswith("1"):
            factors.append(getattr(child, "gamma", getattr(child, "lambda1", None)))
    factor = next((factor for factor in factors if isinstance(factor, nn.Parameter)), None)
    return None if factor is None or factor.is_meta else factor.detach().abs().mean().item()

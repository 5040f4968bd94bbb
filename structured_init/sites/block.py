"""What the block around an attention layer says about it: how its branch is scaled, and whose tokens it looks at."""

from __future__ import annotations

import re

from torch import nn

_SCALES = ("gamma_1", "gamma1", "lambda_1")  # BEiT, EVA, CaiT; XCiT; transformers' BEiT

_CROSS = re.compile(r"cross_?(\w+_)?att|enc(oder)?_?dec(oder)?_?att")
_WHOLE = re.compile(r"att(n|ns|ention|entions)?(_?(layers?|blocks?|modules?))?$")  # all that is in it is attention
_BESIDE_SELF = re.compile(r"(encoder|enc|multihead|multi_head|memory|context)_att(n|ention)")


def is_cross_attention(name: str, block: nn.Module | None) -> bool:
    """Say whether attention looks at other tokens than its own, as far as its name and the block around it tell.

    It does where its name says so (``cross_attn``, ``EncDecAttention``), or that of a list or module around it; where
    it stands beside ``self_attn`` as ``encoder_attn`` or ``multihead_attn``, as in torch's and fairseq's decoders; and
    in a pooling head, where a parameter asks and the tokens answer. One class often serves both ways, so its own name
    says nothing.

    Args:
        name: the attention's name in the model, e.g. ``"decoder.layers.0.cross_attn"``.
        block: the module around it.
    """
    child, *around = (part.lower() for part in reversed(name.split(".")))
    for part in (child, *around):
        if "self" in part and "att" in part:
            return False
        if "covariance" not in part and _CROSS.search(part) and (part == child or _WHOLE.search(part)):
            return True
    siblings = [] if block is None else [sibling.lower() for sibling, _ in block.named_children()]
    if _BESIDE_SELF.fullmatch(child) and any("self" in sibling and "att" in sibling for sibling in siblings):
        return True
    pools = block is not None and "pool" in type(block).__name__.lower()
    return pools and next(block.parameters(recurse=False), None) is not None


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

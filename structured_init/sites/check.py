"""Are the layouts right by which a model's attention is known? Asked of the model itself."""

from __future__ import annotations

from torch import nn

from structured_init.errors import StructuredInitError
from structured_init.plan import Weights
from structured_init.sites.attention import attention_sites
from structured_init.sites.watched import compare_layout, same_attention, watched_attention


def check_attention(model: nn.Module, batch: object = None) -> dict[str, tuple[float, float]]:
    """Compare the four matrices of every attention layout with what one forward pass of the model computes.

    What a layout says beside its matrices (``scale``, ``causal``, norms) is not compared.

    Args:
        model: any network whose attention is known.
        batch: what it takes: a tensor, a tuple of arguments or a dictionary of them; without it, what the host library
            offers.

    Returns:
        Name → relative errors of the logits x W_q W_kᵀ xᵀ and of the outputs x W_v W_o, over all heads. Layers that do
        not run, or that cannot be followed, are missing.

    Raises:
        StructuredInitError: a layout is not what the model computes; there is no batch, or
            the model fails on it; no attention was seen, or none that could be followed.

    Example:
        >>> check_attention(timm.create_model("vit_tiny_patch16_224"))["blocks.0.attn"]
        (0.0, 0.0)
    """
    weights = Weights(model, batch=batch)
    seen = watched_attention(weights)
    if weights.unwatched:
        raise StructuredInitError(weights.unwatched)
    errors = {}
    for site in attention_sites(weights, cross=True):
        found = same_attention(site, seen)
        if found is not None and site.how == "watched":
            errors[site.name] = (found.evidence.logits, found.evidence.outputs)
        elif found is not None:
            errors[site.name] = compare_layout(site, found, Weights(model))
    if not errors:
        reasons = "; ".join(dict.fromkeys(f"'{found.name}': {found.reason}" for found in seen if found.reason))
        raise StructuredInitError(f"no attention could be checked: {reasons or 'none was seen in the forward pass'}")
    return errors

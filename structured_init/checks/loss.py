"""The first loss of a model that guesses: that of uniform targets, beside the logarithm of the number of classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

HEADS = ("head", "classifier", "fc", "lm_head")  # linear layers whose output is logits
RULED_OUT = -1e30  # a logit below is that of a class that cannot be


def first_loss(model: nn.Module, output: Any, classes: int | None) -> tuple[float, int] | None:
    """Return E_y[−log p(y)] = log Σ exp z − mean z, averaged over places, and the number of classes; or ``None``.

    Logits z are ``output.logits`` (transformers), else the first tensor of the output with an axis as long as
    ``classes``, the model's own ``num_classes``, or else the output of a linear layer of the model itself with a name
    of ``HEADS``: the last axis, or axis 1 as in segmentation. Classes that a model rules out by a logit of −∞ or nearly
    so are left out.
    """
    said = classes or getattr(model, "num_classes", None)
    heads = [getattr(model, name, None) for name in HEADS]
    counts = [said] if said else [each.out_features for each in heads if isinstance(each, nn.Linear)]
    named = output.get("logits") if isinstance(output, Mapping) else None
    if isinstance(named, Tensor) and named.ndim > 1:
        output = named
        counts = [classes or named.shape[1 if named.ndim > 3 else -1]]
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor) and leaf.ndim > 1 and leaf.is_floating_point():
            for axis in (-1, 1):
                if leaf.shape[axis] in counts:
                    return _loss_of(leaf.detach().double().movedim(axis, -1).flatten(0, -2))
    return None


def _loss_of(logits: Tensor) -> tuple[float, int] | None:
    """Return the loss of logits (places, classes); ``None`` where there is one class alone, or no place."""
    logits = logits[:, (logits > RULED_OUT).all(0) | logits.isnan().any(0)]
    if logits.shape[-1] < 2 or not len(logits):
        return None
    return (logits.logsumexp(-1) - logits.mean(-1)).mean().item(), logits.shape[-1]

"""The first loss of a model that guesses: that of uniform targets, beside the logarithm of the number of classes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from structured_init.inputs import Inputs, tokens_in

HEADS = ("head", "classifier", "fc", "lm_head")  # linear layers whose output is logits
NO_CLASS = ("multi_label_classification", "regression")  # of transformers: no single class is right
RULED_OUT = -1e30  # a logit below is that of a class that cannot be


def first_loss(
    model: nn.Module, inputs: Inputs, output: Any, blocks: Collection[nn.Module], classes: int | None
) -> tuple[float, int] | None:
    """Return E_y[−log p(y)] = log Σ exp z − mean z, averaged over places, and the number of classes; or ``None``.

    Logits z are ``output.logits`` (transformers), else the first tensor of the output with an axis as long as
    ``classes``, the model's own ``num_classes``, or else the output of a linear layer of the model itself with a name
    of ``HEADS``, or the words of an embedding: the last axis, or axis 1 as in segmentation. Classes that a model rules
    out by a logit of −∞ or nearly so are left out.
    """
    problem = getattr(getattr(model, "config", None), "problem_type", None)
    if classes is None and problem in NO_CLASS:
        return None
    said = classes or getattr(model, "num_classes", None)
    logits = output.get("logits") if isinstance(output, Mapping) else None
    axes = (-1, 1)
    if isinstance(logits, Tensor) and logits.ndim > 1:
        output, counts = logits, [classes or logits.shape[1 if logits.ndim > 3 else -1]]
    elif said:
        counts = [said]
    else:
        counts, axes = _heads(model) + _words(model, inputs, blocks), (-1,)
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor) and leaf.ndim > 1 and leaf.is_floating_point():
            for axis in axes:
                if leaf.shape[axis] in counts:
                    return _loss_of(leaf.detach().double().movedim(axis, -1).flatten(0, -2))
    return None


def _heads(model: nn.Module) -> list[int]:
    """Return the outputs of linear layers of the model itself that are called as a head is."""
    heads = [getattr(model, name, None) for name in HEADS]
    return [each.out_features for each in heads if isinstance(each, nn.Linear)]


def _words(model: nn.Module, inputs: Inputs, blocks: Collection[nn.Module]) -> list[int]:
    """Return the rows of the first embedding outside of blocks, of a model that reads tokens by number."""
    inside: set[nn.Module] = set()  # an embedding in a block is no vocabulary, but a table of relative positions
    for block in blocks:
        inside.update(block.modules())
    tables = [each for each in model.modules() if isinstance(each, nn.Embedding) and each not in inside]
    known = tokens_in(inputs) and tables and tables[0].num_embeddings != tables[0].embedding_dim
    return [tables[0].num_embeddings] if known else []


def _loss_of(logits: Tensor) -> tuple[float, int] | None:
    """Return the loss of logits (places, classes); ``None`` where there is one class alone, or no place."""
    logits = logits[:, (logits > RULED_OUT).all(0) | logits.isnan().any(0)]
    if logits.shape[-1] < 2 or not len(logits):
        return None
    return (logits.logsumexp(-1) - logits.mean(-1)).mean().item(), logits.shape[-1]

"""The first loss of a model that guesses: that of uniform targets, beside the logarithm of the number of classes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from structured_init.inputs import Inputs

HEADS = ("head", "classifier", "fc", "lm_head")  # linear layers whose output is logits, where no block holds them
TOKENS = 100  # rows from which on a table is one of tokens
RULED_OUT = -1e30  # a logit below is that of a class that cannot be


def first_loss(
    model: nn.Module, inputs: Inputs, output: Any, blocks: Collection[nn.Module], classes: int | None
) -> tuple[tuple[float, int] | None, str]:
    """Return E_y[−log p(y)] = log Σ exp z − mean z, averaged over places, and the number of classes; and any doubt.

    Logits z are ``output.logits`` (transformers), else the first tensor of the output with an axis as long as
    ``classes``, or the model's own ``num_classes``: the last axis, or axis 1 as in segmentation. Where neither is said,
    they are the first tensor, if its last axis is as long as the output of a linear layer with a name of ``HEADS``, or,
    of a model that takes integers alone, the rows of an embedding outside of blocks. Classes that a model rules out by
    a logit of −∞ or nearly so are left out.
    """
    problem = getattr(getattr(model, "config", None), "problem_type", None)  # of transformers
    if classes is None and problem in ("multi_label_classification", "regression"):
        return None, f"its configuration says problem_type='{problem}', where no single class is right"
    logits, doubt = _logits(model, inputs, output, blocks, classes)
    if logits is not None:
        logits = logits.detach().double().flatten(0, -2)
        logits = logits[:, (logits > RULED_OUT).all(0) | logits.isnan().any(0)]
        if logits.shape[-1] > 1 and len(logits):
            return ((logits.logsumexp(-1) - logits.mean(-1)).mean().item(), logits.shape[-1]), doubt
    if classes is not None:
        return None, f"its output has no {classes} logits"
    return None, "its output does not say how many classes it has: give 'classes' if it has any"


def _logits(
    model: nn.Module, inputs: Inputs, output: Any, blocks: Collection[nn.Module], classes: int | None
) -> tuple[Tensor | None, str]:
    """Return logits (…, classes), and what they are so under."""
    said = classes or getattr(model, "num_classes", None)
    counts = {said: ""} if said else dict(_class_counts(model, inputs, blocks))
    named = output.get("logits") if isinstance(output, Mapping) else None
    if isinstance(named, Tensor):
        if named.ndim > 3 and named.shape[-1] not in counts:  # an image of classes
            named = named.movedim(1, -1)
        return (named, "") if named.ndim > 1 else (None, "")
    seen = [each for each in tree_leaves(output) if isinstance(each, Tensor) and each.ndim > 1]
    for each in seen if said else seen[:1]:
        if each.shape[-1] in counts and each.is_floating_point():
            return each, counts[each.shape[-1]]
        if said and each.shape[1] == said and each.is_floating_point():
            return each.movedim(1, -1), ""
    return None, ""


def _class_counts(model: nn.Module, inputs: Inputs, blocks: Collection[nn.Module]) -> Iterator[tuple[int, str]]:
    """Yield what may be the number of classes, the surest last."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] in HEADS and not re.search(r"\d", name):
            yield module.out_features, "if these are classes"
    # An embedding in a block is no vocabulary, but a table of relative positions; beside measurements of anything.
    inside = {part for block in blocks for part in block.modules() if part is not block}
    given = [each for each in tree_leaves(inputs) if isinstance(each, Tensor)]
    if any(each.is_floating_point() or each.is_complex() for each in given):
        return
    tables = [each for each in model.modules() if isinstance(each, nn.Embedding) and each not in inside]
    for number, table in enumerate(tables):
        if table.num_embeddings != table.embedding_dim and (number == 0 or table.num_embeddings >= TOKENS):
            yield table.num_embeddings, ""

"""What a network makes of the same samples, block by block, kept as Gram matrices: all that a similarity needs.

Letters: B minibatches, m samples in each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from structured_init.analysis.blocks import repeated_blocks
from structured_init.analysis.cka import gram_matrix
from structured_init.errors import StructuredInitError
from structured_init.undisturbed import undisturbed

Grams = dict[str, Float[Tensor, "batches samples samples"]]


def gram_matrices(
    model: nn.Module, *args: Any, blocks: dict[str, nn.Module] | None = None, batch_size: int = 64, **kwargs: Any
) -> Grams:
    """Return X Xᵀ of every block's output X, tokens and channels flattened and centred, minibatch by minibatch.

    Memory does not grow with the width of the network: features are dropped as soon as their Gram matrix is known. A
    last minibatch that is not full is left out, since minibatches of unequal size cannot be averaged.

    Args:
        model: any network; it is left as it was (see ``undisturbed``).
        *args: what the model takes; every tensor with the batch's length is cut into minibatches.
        blocks: the modules to listen to, by name; ``repeated_blocks(model)`` when None.
        batch_size: m; reduced to the number of samples where that is smaller.
        **kwargs: what the model takes by name.

    Returns:
        Name of the block → Gram matrices (B, m, m) in float64 on the CPU, in calling order. Of several outputs the
        first floating-point tensor counts; its samples lie along the first axis of length m. A block called again
        within a pass is named ``name:2``, …

    Raises:
        StructuredInitError: fewer than four samples, no block was run, or an output without an axis of samples.
    """
    blocks = repeated_blocks(model) if blocks is None else blocks
    samples = next((leaf.shape[0] for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.ndim), 0)
    size = min(batch_size, samples)
    if size < 4:
        raise StructuredInitError(f"similarities need at least 4 samples, got {size}")
    grams: dict[str, list[Tensor]] = {}
    seen: set[str] = set()  # of the present minibatch
    hooks = []
    try:
        hooks += [module.register_forward_hook(_listener(name, size, grams, seen)) for name, module in blocks.items()]
        with undisturbed(model):
            for part_args, part_kwargs in _minibatches((args, kwargs), samples, size):
                model(*part_args, **part_kwargs)
                seen.clear()
    finally:
        for hook in hooks:
            hook.remove()
    # A block that some minibatches skip has no matrices to compare.
    full = {name: torch.stack(found) for name, found in grams.items() if len(found) == samples // size}
    if not full:
        raise StructuredInitError(f"none of the blocks {', '.join(blocks)} was run by {type(model).__name__}")
    return full


def _listener(name: str, size: int, grams: dict[str, list[Tensor]], seen: set[str]) -> Callable[..., None]:
    def listen(module: nn.Module, inputs: Any, output: Any) -> None:
        tensors = (leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor))
        features = next((tensor for tensor in tensors if tensor.is_floating_point()), None)
        if features is None:
            return
        count = 1 + sum(other.partition(":")[0] == name for other in seen)
        distinct = name if count == 1 else f"{name}:{count}"
        seen.add(distinct)
        grams.setdefault(distinct, []).append(gram_matrix(_samples_first(features.detach(), size, name)).cpu())

    return listen


def _samples_first(features: Tensor, size: int, name: str) -> Tensor:
    """Move the samples to the front; torch's own transformer layers put the sequence there."""
    if size not in features.shape:
        raise StructuredInitError(
            f"the output of '{name}' has shape {tuple(features.shape)}, so it is not known which part of it belongs to "
            f"which of {size} samples: choose other blocks"
        )
    return features.movedim(features.shape.index(size), 0)


def _minibatches(inputs: Any, samples: int, size: int) -> Iterator[Any]:
    for start in range(0, samples - size + 1, size):
        yield tree_map(
            lambda leaf, start=start: (
                leaf[start : start + size]
                if isinstance(leaf, Tensor) and leaf.ndim and leaf.shape[0] == samples
                else leaf
            ),
            inputs,
        )

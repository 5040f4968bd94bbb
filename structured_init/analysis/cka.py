"""Centered kernel alignment: how similar two representations of the same samples are, whatever their widths.

Letters: B minibatches, m samples in each. All that is needed of a representation X (m, features) is its Gram matrix
X Xᵀ, minibatch by minibatch. Every function computes in float64.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from structured_init.analysis.blocks import repeated_blocks
from structured_init.inputs import as_inputs, explain_failure, first_samples
from structured_init.undisturbed import undisturbed
from structured_init.util.errors import StructuredInitError

Gram = Float[Tensor, "*batches samples samples"]
Grams = dict[str, Float[Tensor, "batches samples samples"]]


def gram_matrix(features: Float[Tensor, "samples ..."]) -> Float[Tensor, "samples samples"]:
    """Return X Xᵀ in float64 for features X whose mean over the samples is removed.

    Neither HSIC nor distances notice a shift of all features. Removing it keeps differences between samples visible
    where they are small beside what all samples share, also after the matrix is stored in float32.

    Args:
        features: one row per sample; further axes (tokens, channels) are flattened.
    """
    flat = features.flatten(1).double()
    flat = flat - flat.mean(dim=0)
    return flat @ flat.mT


def hsic1(first: Gram, second: Gram) -> Float[Tensor, "*batches"]:
    """Return the unbiased estimate of the Hilbert–Schmidt independence criterion of every minibatch.

    With K̃, L̃ for the kernels without their diagonals: [tr(K̃L̃) + 1ᵀK̃1 · 1ᵀL̃1 / ((m−1)(m−2)) − 2 · 1ᵀK̃L̃1 / (m−2)]
    / (m(m−3)). Nguyen, Raghu and Kornblith 2021 (arXiv 2010.15327), equation 3, after Song et al. 2012 (JMLR 13).

    Raises:
        StructuredInitError: fewer than four samples, or different samples.
    """
    m = first.shape[-1]
    if first.shape != second.shape:
        raise StructuredInitError(
            f"similarities need the same minibatches on both sides, got {tuple(first.shape)} and {tuple(second.shape)}"
        )
    if m < 4:
        raise StructuredInitError(f"similarities need at least 4 samples in a minibatch, got {m}")
    diagonal = torch.eye(m, dtype=torch.bool, device=first.device)
    first, second = (_off_diagonal(kernel.double(), diagonal) for kernel in (first, second))
    row_sums, other_row_sums = first.sum(dim=-1), second.sum(dim=-1)
    trace = (first * second).sum(dim=(-2, -1))
    sums = row_sums.sum(dim=-1) * other_row_sums.sum(dim=-1) / ((m - 1) * (m - 2))
    rows = 2 * (row_sums * other_row_sums).sum(dim=-1) / (m - 2)
    return (trace + sums - rows) / (m * (m - 3))


def cka(first: Gram, second: Gram) -> Float[Tensor, ""]:
    """Return minibatch CKA, mean_b HSIC₁(K, L) / √(mean_b HSIC₁(K, K) · mean_b HSIC₁(L, L)).

    Nguyen, Raghu and Kornblith 2021 (arXiv 2010.15327), equation 2; CKA itself is from Kornblith et al. 2019. One for
    representations that differ by a rotation and a scale, zero in expectation for independent ones. As the estimate is
    unbiased, single values may lie a little below zero or above one. It is nan where a representation is constant.
    Kernel matrices are (B, m, m), or one (m, m), of the same samples.
    """
    return cka_matrix({"": first}, {"": second})[0, 0]


def cka_matrix(first: Mapping[str, Gram], second: Mapping[str, Gram]) -> Float[Tensor, "layers other_layers"]:
    """Return the CKA of every layer of one network, a row each, with every layer of another on the same samples.

    Both are layer → Gram matrices (B, m, m), as ``gram_matrices`` gives them or a file has them. Rows and columns stand
    as given: those of a file are by depth if :func:`structured_init.util.files.read_tensors` reads it, and in
    alphabetical order from ``load_file``.
    """
    if not (first and second):
        raise StructuredInitError("cka_matrix: a side has no Gram matrices: give {layer: gram_matrix} for both")
    between = [hsic1(k, other).mean() for k in first.values() for other in second.values()]
    own = torch.stack([hsic1(k, k).mean() for k in first.values()])
    others = torch.stack([hsic1(k, k).mean() for k in second.values()])
    # Two roots: the product may leave the range of numbers. HSIC₁(K, K) is a square, but for rounding.
    scales = own.clamp_min(0).sqrt()[:, None] * others.clamp_min(0).sqrt()
    return torch.stack(between).view(scales.shape) / scales


def _off_diagonal(kernel: Tensor, diagonal: Tensor) -> Tensor:
    """Empty the diagonal, and remove the mean of the rest: HSIC₁ does not notice, and less is lost to rounding."""
    m = kernel.shape[-1]
    mean = kernel.masked_fill(diagonal, 0).sum(dim=(-2, -1), keepdim=True) / (m * (m - 1))
    return (kernel - mean).masked_fill(diagonal, 0)


def gram_matrices(
    model: nn.Module, *args: Any, blocks: dict[str, nn.Module] | None = None, batch_size: int = 64, **kwargs: Any
) -> Grams:
    """Return X Xᵀ of every block's output X, tokens and channels flattened and centred, minibatch by minibatch.

    Memory does not grow with the width of the network: features are dropped as soon as their Gram matrix is known. A
    last minibatch that is not full is left out, since minibatches of unequal size cannot be averaged.

    Args:
        model: any network; it is left as it was (see ``undisturbed``).
        *args: what the model takes, as for ``capture_attention``; every tensor with the batch's length is cut into
            minibatches.
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
    args, kwargs = as_inputs(*args, **kwargs)
    samples = next((leaf.shape[0] for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.ndim), 0)
    size = min(batch_size, samples)
    if size < 4:
        raise StructuredInitError(f"similarities need at least 4 samples, got {size}")
    grams: dict[str, list[Tensor]] = {}
    runs: Counter[str] = Counter()  # of the present minibatch
    with ExitStack() as hooks, undisturbed(model):
        for name, module in blocks.items():
            hooks.callback(module.register_forward_hook(partial(_keep_gram, name, size, grams, runs)).remove)
        for start in range(0, samples - size + 1, size):
            part_args, part_kwargs = first_samples((args, kwargs), size, start)
            with explain_failure(model):
                model(*part_args, **part_kwargs)
            runs.clear()
    # A block that some minibatches skip has no matrices to compare.
    full = {name: torch.stack(found) for name, found in grams.items() if len(found) == samples // size}
    if not full:
        raise StructuredInitError(f"none of the blocks {', '.join(blocks)} was run by {type(model).__name__}")
    return full


def _keep_gram(
    name: str, size: int, grams: dict[str, list[Tensor]], runs: Counter[str], _: nn.Module, __: tuple, output: Any
) -> None:
    """Keep the Gram matrix of what a block has put out, as a forward hook."""
    found = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    if not found:
        return
    features = found[0]
    runs[name] += 1
    distinct = name if runs[name] == 1 else f"{name}:{runs[name]}"
    if size not in features.shape:
        raise StructuredInitError(
            f"the output of '{name}' has shape {tuple(features.shape)}, so it is not known which part of it "
            f"belongs to which of {size} samples: choose other blocks"
        )
    # Samples come to the front; torch's own transformer layers put the sequence there.
    features = features.detach().movedim(features.shape.index(size), 0)
    grams.setdefault(distinct, []).append(gram_matrix(features).cpu())

"""PatchWhitening: the first layer of an image network writes patches whose directions all have the same size.

Letters: d numbers of a patch (channels × rows × columns), F filters, C = E[p pᵀ] the second moment of patches, (d, d).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from structured_init.attention.planned_run import run_planned
from structured_init.initializer import Initializer
from structured_init.inputs import explain_failure
from structured_init.util.arguments import check_finite, check_positive
from structured_init.util.draws import Draws
from structured_init.util.errors import StructuredInitError
from structured_init.util.linalg import random_orthogonal
from structured_init.weights import Weights

WHO = "PatchWhitening"
KINDS = "nn.Conv2d without groups and no linear layer"
Layer = nn.Conv2d | nn.Linear


class PatchWhitening(Initializer):
    """Filters of the first layer that whiten the patches of real images.

    In images nearly all variance lies in a few smooth directions of a patch. Random filters pass that on: of what a
    patch embedding writes, edges and colours are a small part. Whitened, all directions of a patch whose size is well
    above ``floor`` are equally large.

    With O a random matrix whose columns (rows, where F < d) are orthonormal, λ the largest eigenvalue of C,

        W = s · O · (C + floor · λ I)^(−exponent/2),

    where s makes the root mean square of the outputs ``gain`` over the patches inside the images: padding and a norm
    behind the layer change it. The bias becomes zero.

    The first layer that runs on the images must be an ``nn.Conv2d`` without groups or an ``nn.Linear``: the patch
    embedding of a vision transformer or ConvMixer, the stem of a ConvNet. It takes a batch of real images:
    ``initialize(model, initializer, batch=images)``; ``InitCallback`` gives ``samples`` of them.

    Args:
        gain: root mean square of the layer's outputs on the patches of the batch. On other images it holds where the
            batch has many more patches than a patch has numbers; with fewer the report warns.
        exponent: 1 whitens; 0 leaves random orthonormal filters of the same gain, the control.
        floor: added to the eigenvalues of C, relative to the largest: directions below it stay smaller.

    Raises:
        StructuredInitError: at construction, an argument out of range; at :meth:`plan`, no batch of images, a first
            layer of another kind, images of another shape or number of channels, or a batch whose patches are all zero
            or not finite.

    Example:
        >>> import timm, torch
        >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=4, depth=1, num_classes=10)
        >>> from structured_init import PatchWhitening, initialize
        >>> images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0)).cumsum(-1)  # smooth in a row
        >>> report = initialize(model, PatchWhitening(), seed=0, batch=images)
        >>> [entry.names[0] for entry in report.changed]
        ['patch_embed.proj.weight', 'patch_embed.proj.bias']

    Source: ours for vision transformers. For ConvNets, whitened first filters (eigenvectors over the root of their
    eigenvalues, with both signs, frozen) are from tysam-code/hlb-CIFAR10 and Jordan, 2404.00498, section 3.2.
    """

    def __init__(self, gain: float = 0.7, exponent: float = 1.0, floor: float = 1e-4) -> None:
        check_positive(WHO, gain=gain, floor=floor)
        check_finite(WHO, exponent=exponent)
        if not 0 <= exponent <= 1:
            raise StructuredInitError(f"{WHO}: exponent must lie between 0 and 1, got {exponent}")
        self.gain, self.exponent, self.floor = gain, exponent, floor

    @property
    def needs_batch(self) -> bool:
        return True

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        if batch is None:
            raise StructuredInitError(
                f"{WHO} needs real images, as one tensor: initialize(model, initializer, batch=images); of a model that"
                " takes more, initialize the part that takes images"
            )
        name, module, inputs = first_layer(weights, batch)
        moment, count = second_moment(module, inputs)
        if not 0 < moment.trace() < math.inf:  # nan too
            raise StructuredInitError(f"{WHO}: the patches that '{name}' sees in the batch are all zero, or not finite")
        if count < len(moment):
            weights.warn(
                f"{WHO}: '{name}' saw {count:,} patches of {len(moment):,} numbers, too few to know all directions: "
                "give more images (samples of InitCallback)"
            )
        outputs = module.weight.shape[0]
        mixing = random_orthogonal(outputs, len(moment), generator=rng.generator(name, WHO))
        filters = mixing @ inverse_power(moment, self.exponent, self.floor)
        before = torch.einsum("fd,de,fe->", filters, moment, filters) / outputs  # mean square of the outputs
        by = f"{WHO}: {'filters' if self.exponent else 'orthonormal filters'}"
        weights.write(module.weight, (self.gain / before.sqrt() * filters).reshape(module.weight.shape), by)
        if module.bias is not None:
            weights.write(module.bias, torch.zeros(outputs), by)
        weights.note(name, f"{count:,} patches of {len(moment)} numbers")


def first_layer(weights: Weights, images: Tensor) -> tuple[str, Layer, Tensor]:
    """Return the first layer that multiplies what it is given, and what comes to it from images, on the CPU."""
    seen: list[tuple[str, nn.Module, Tensor]] = []

    def listen(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if not seen and tensors:
            seen.append((name, module, tensors[0].detach().cpu()))

    with ExitStack() as stack:
        for name, module in weights.modules.items():
            if _multiplies(module):
                stack.callback(module.register_forward_hook(partial(listen, name), with_kwargs=True).remove)
        with explain_failure(weights.model, bugs=True):
            run_planned(weights, ((images,), {}))
    if not seen:
        raise StructuredInitError(f"{WHO}: on the batch the model does not run any of its layers")
    name, module, _ = seen[0]
    if not _has_filters(module):
        kind = type(module).__name__
        raise StructuredInitError(f"{WHO}: the first layer that runs, '{name}' ({kind}), is no {KINDS}")
    return seen[0]


def second_moment(module: Layer, inputs: Tensor) -> tuple[Float64[Tensor, "d d"], int]:
    """Return C of the patches inside the images, padding left out, and how many there are."""
    total, count = torch.zeros(()), 0
    for each in inputs:  # one image at a time: patches that overlap take many times its memory
        if isinstance(module, nn.Conv2d):
            shape = {"kernel_size": module.kernel_size, "dilation": module.dilation, "stride": module.stride}
            patches = nn.functional.unfold(each[None].double(), **shape)[0].mT
        else:
            patches = each.double().reshape(-1, module.in_features)
        total, count = total + patches.mT @ patches, count + len(patches)
    return total / max(count, 1), count


def inverse_power(moment: Float64[Tensor, "d d"], exponent: float, floor: float) -> Float64[Tensor, "d d"]:
    """Return (C + floor · λ I)^(−exponent/2), symmetric, λ the largest eigenvalue of C."""
    values, vectors = torch.linalg.eigh(moment)
    values = values.clamp(min=0) + floor * values[-1]
    return vectors * values.pow(-exponent / 2) @ vectors.mT


def _has_filters(module: nn.Module) -> bool:
    """Whether a module multiplies whole patches, or whole tokens, with filters."""
    return isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1)


def _multiplies(module: nn.Module) -> bool:
    """Whether a module has filters, or is a leaf with a matrix or a kernel of another kind, such as an embedding."""
    own = module.parameters(recurse=False)
    return _has_filters(module) or (not any(module.children()) and any(each.ndim > 1 for each in own))

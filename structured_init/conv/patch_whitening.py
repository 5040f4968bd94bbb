"""PatchWhitening: the first layer of an image network writes patches whose directions all have the same size.

Letters: d numbers of a patch (channels × rows × columns), F filters, C = E[p pᵀ] the second moment of patches, (d, d).
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from structured_init.arguments import check_finite, check_positive
from structured_init.attention.forward import run_planned
from structured_init.draws import Draws
from structured_init.errors import StructuredInitError, nearest
from structured_init.initializer import Initializer
from structured_init.linalg import random_orthogonal
from structured_init.names import named_plain_modules
from structured_init.plan import Weights

WHO = "PatchWhitening"
Layer = nn.Conv2d | nn.Linear


class PatchWhitening(Initializer):
    """Filters of the first layer that whiten the patches of real images.

    In images nearly all variance lies in a few smooth directions of a patch. Random filters pass that on: of what a
    patch embedding writes, edges and colours are a small part. Whitened, all directions of a patch are equally large.

    With O a random matrix whose columns (rows, where F < d) are orthonormal, λ the largest eigenvalue of C,

        W = s · O · (C + floor · λ I)^(−exponent/2),

    where s makes the root mean square of the outputs ``gain``. The bias becomes zero.

    The first layer is the first ``nn.Conv2d`` without groups, or ``nn.Linear``, that runs on the images: the patch
    embedding of a vision transformer or ConvMixer, the stem of a ConvNet. It takes a batch of real images:
    ``initialize(model, initializer, batch=images)``; ``InitCallback`` gives ``samples`` of them.

    Args:
        gain: root mean square of the layer's outputs on the batch.
        exponent: 1 whitens; 0 leaves random orthonormal filters of the same gain, the control.
        floor: added to the eigenvalues of C, relative to the largest: directions below it stay smaller.
        layer: name of another layer to whiten instead.

    Raises:
        StructuredInitError: at construction, an argument out of range; at :meth:`plan`, no batch of images, no such
            layer, images of another number of channels, or a batch on which all of its patches are zero.

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

    def __init__(self, gain: float = 0.7, exponent: float = 1.0, floor: float = 1e-4, layer: str | None = None) -> None:
        check_positive(WHO, gain=gain, floor=floor)
        check_finite(WHO, exponent=exponent)
        if not 0 <= exponent <= 1:
            raise StructuredInitError(f"{WHO}: exponent must lie between 0 and 1, got {exponent}")
        self.gain = gain
        self.exponent = exponent
        self.floor = floor
        self.layer = layer

    @property
    def needs_batch(self) -> bool:
        return True

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        if batch is None:
            raise StructuredInitError(f"{WHO} needs real images: initialize(model, initializer, batch=images)")
        name, module, inputs = first_layer(weights, batch, self.layer)
        _check_channels(name, module, inputs)
        moment, count = second_moment(module, inputs)
        if not moment.any():
            raise StructuredInitError(f"{WHO}: all patches that '{name}' sees in the batch are zero")
        outputs = module.weight.shape[0]
        mixing = random_orthogonal(outputs, len(moment), generator=rng.generator(name, WHO))
        filters = mixing @ inverse_power(moment, self.exponent, self.floor)
        before = torch.einsum("fd,de,fe->", filters, moment, filters) / outputs  # mean square of the outputs
        by = f"{WHO}: {'filters' if self.exponent else 'orthonormal filters'}"
        weights.write(module.weight, (self.gain / before.sqrt() * filters).reshape(module.weight.shape), by)
        if module.bias is not None:
            weights.write(module.bias, torch.zeros(outputs), by)
        values = torch.linalg.eigvalsh(moment)
        share = float(values[-1] / values.sum())
        weights.note(name, f"{count:,} patches of {len(moment)} numbers, {share:.0%} of their size in one direction")


def first_layer(weights: Weights, images: Tensor, name: str | None = None) -> tuple[str, Layer, Tensor]:
    """Return the first layer that runs on images, or that of a name, and what comes to it, on the CPU.

    Args:
        weights: the overlay, in whose model everything planned so far is in effect.
        images: a batch.
        name: of the layer; ``None`` for the first.

    Raises:
        StructuredInitError: the model has no such layer, or does not run it on the batch.
    """
    layers = {each: module for each, module in named_plain_modules(weights.model) if _has_filters(module)}
    if name is not None and name not in layers:
        raise StructuredInitError(
            f"{WHO}: the model has no convolution or linear layer '{name}': {nearest(name, layers)}"
        )
    seen: list[tuple[str, Layer, Tensor]] = []

    def listen(each: str, module: Layer, args: tuple[Any, ...]) -> NoReturn:
        seen.append((each, module, args[0].detach().cpu()))
        raise _Reached

    chosen = layers if name is None else {name: layers[name]}
    handles = [
        module.register_forward_pre_hook(lambda module, args, each=each: listen(each, module, args))
        for each, module in chosen.items()
    ]
    try:
        run_planned(weights, ((images,), {}))
    except _Reached:
        return seen[0]
    finally:
        for handle in handles:
            handle.remove()
    what = "no convolution without groups and no linear layer" if name is None else f"not '{name}'"
    raise StructuredInitError(f"{WHO}: on the batch the model runs {what}")


def second_moment(module: Layer, inputs: Tensor) -> tuple[Float64[Tensor, "d d"], int]:
    """Return C of the patches inside the images, padding left out, and how many there are.

    Args:
        module: the layer.
        inputs: (B, channels, rows, columns) of a convolution, (..., d) of a linear layer.
    """
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


def _check_channels(name: str, module: Layer, inputs: Tensor) -> None:
    """Raise where what comes to a layer has not the channels that it takes."""
    taken, given = (
        (module.in_channels, inputs.shape[1])
        if isinstance(module, nn.Conv2d)
        else (module.in_features, inputs.shape[-1])
    )
    if taken != given:
        raise StructuredInitError(f"{WHO}: '{name}' takes {taken} channels, and the batch gives it {given}")


class _Reached(Exception):
    """The layer is called: nothing behind it has to run."""


def _has_filters(module: nn.Module) -> bool:
    """Whether a module multiplies whole patches, or whole tokens, with filters."""
    return isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1)

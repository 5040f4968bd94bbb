"""From a name to a network."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import timm
from timm.layers import to_2tuple
from torch import nn

from lightning_modules.networks.compact_transformer import (
    COMPACT_TRANSFORMERS,
    compact_arguments,
    compact_transformer,
)
from lightning_modules.networks.convolutional import CONVMIXERS, convmixer, convmixer_sizes
from lightning_modules.networks.lipschitz import LIPSCHITZ_NETWORKS, lipschitz_network
from lightning_modules.networks.token_softmax import place_token_softmax
from lightning_modules.networks.vision_transformer import PRESETS, vision_transformer
from structured_init.util.errors import StructuredInitError, nearest, one_line


def network_names() -> list[str]:
    """Return the names that :func:`create_network` knows: this project's, then timm's."""
    return [*PRESETS, *COMPACT_TRANSFORMERS, *CONVMIXERS, *LIPSCHITZ_NETWORKS, *timm.list_models()]


def create_network(
    name: str, *, num_classes: int = 10, image_size: int = 32, in_channels: int = 3, **network_args: Any
) -> nn.Module:
    """Build a network by its name.

    Args:
        name: a preset of :data:`PRESETS`, ``convmixer_<dim>_<depth>_k<kernel>_p<patch>`` with any sizes, a compact
            transformer (``cct_7_3x1_32``, ``vit_lite_7_4_32``, ``cvt_7_4_32``, …), a network of
            :data:`LIPSCHITZ_NETWORKS`, or a model of timm (``pretrained: true`` is one of its arguments).
        num_classes: outputs.
        image_size: side of the square image in pixels; networks that take any size ignore it.
        in_channels: channels of the image.
        network_args: arguments of :func:`vision_transformer`, :func:`compact_transformer`, :func:`convmixer`,
            :func:`lipschitz_network` (``conv``, ``width``) or of the timm model; they win over what the name says. All
            that attend take ``token_softmax``, arguments of :func:`place_token_softmax`.

    Raises:
        StructuredInitError: the name is unknown (the nearest is named), or arguments or sizes do not fit.
    """
    sizes = {"num_classes": num_classes, "image_size": image_size, "in_channels": in_channels}
    token_softmax = None if compact_arguments(name) else network_args.pop("token_softmax", None)
    try:
        network = _builder(name)(**sizes, **network_args)
    except StructuredInitError:
        raise
    except Exception as error:  # timm refuses sizes by whatever they break
        said = one_line(error) or type(error).__name__
        raise StructuredInitError(
            f"network '{name}' cannot be built with {network_args or sizes}: {said}; "
            "what is left over from another network goes by --model.network_args=null"
        ) from error
    return network if token_softmax is None else place_token_softmax(network, **token_softmax)


def _builder(name: str) -> Callable[..., nn.Module]:
    """Return what builds a network of a name from sizes and arguments."""
    if name in PRESETS:
        return partial(vision_transformer, **PRESETS[name])
    if compact_arguments(name):
        return partial(compact_transformer, name)
    if name in LIPSCHITZ_NETWORKS:
        return lipschitz_network
    mixer = convmixer_sizes(name)
    return partial(_timm_network, name) if mixer is None else partial(convmixer, **mixer)


def _timm_network(name: str, *, image_size: int, in_channels: int, **network_args: Any) -> nn.Module:
    """Build a timm model at an image size, if its family has one."""
    if not name.startswith(("hf-hub:", "hf_hub:", "local-dir:")) and not timm.is_model(name):
        raise StructuredInitError(
            f"unknown network '{name}': {nearest(name, network_names())} A class of yours is a class_path"
        )
    try:
        network = timm.create_model(name, img_size=image_size, in_chans=in_channels, **network_args)
    except TypeError as error:  # convolutional families have no img_size
        if "img_size" not in str(error):
            raise
        network = timm.create_model(name, in_chans=in_channels, **network_args)
    # timm would silently crop the image to whole patches.
    patch_size = getattr(getattr(network, "patch_embed", None), "patch_size", None)
    if patch_size is not None and image_size % to_2tuple(patch_size)[0]:
        raise StructuredInitError(f"patch_size {patch_size} of '{name}' does not divide image_size {image_size}")
    return network

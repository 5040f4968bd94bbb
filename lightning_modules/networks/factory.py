"""From a name to a network."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import timm
from timm.models.convmixer import ConvMixer
from timm.models.convnext import ConvNeXt
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from lightning_modules.networks.compact_transformer import (
    COMPACT_TRANSFORMERS,
    CompactEncoder,
    CompactTransformer,
    compact_arguments,
    compact_transformer,
)
from lightning_modules.networks.convolutional import CONVMIXERS, CONVNEXTS, convmixer, convmixer_sizes, convnext
from lightning_modules.networks.lipschitz import LIPSCHITZ_NETWORKS, lipschitz_network
from lightning_modules.networks.token_softmax import place_token_softmax
from lightning_modules.networks.vision_transformer import PRESETS, vision_transformer
from structured_init.util.errors import StructuredInitError, nearest, one_line


def network_names() -> list[str]:
    """Return the names that :func:`create_network` knows: this project's, then timm's."""
    return [*PRESETS, *COMPACT_TRANSFORMERS, *CONVMIXERS, *CONVNEXTS, *LIPSCHITZ_NETWORKS, *timm.list_models()]


def create_network(
    name: str, *, num_classes: int = 10, image_size: int = 32, in_channels: int = 3, **network_args: Any
) -> nn.Module:
    """Build a network by its name.

    Args:
        name: a preset of :data:`PRESETS` or :data:`CONVNEXTS`, ``convmixer_<dim>_<depth>_k<kernel>_p<patch>`` with any
            sizes, a compact transformer (``cct_7_3x1_32``, ``vit_lite_7_4_32``, ``cvt_7_4_32``, …), a network of
            :data:`LIPSCHITZ_NETWORKS`, or a model of timm (``pretrained: true`` is one of its arguments).
        num_classes: outputs.
        image_size: side of the square image in pixels; networks that take any size ignore it.
        in_channels: channels of the image.
        network_args: arguments of :func:`vision_transformer`, :func:`compact_transformer`, :func:`convmixer`,
            :func:`convnext`, :func:`lipschitz_network` (``conv``, ``width``) or of the timm model; they win over
            what the name says. All that attend take ``token_softmax``, arguments of :func:`place_token_softmax`.

    Raises:
        StructuredInitError: the name or an argument is unknown (the nearest is named), or the sizes do not fit.
    """
    if not isinstance(name, str):
        raise StructuredInitError(f"network must be a name, such as {next(iter(PRESETS))}, got {name}")
    for argument in {"depth", "embed_dim", "num_heads", "patch_size"} & network_args.keys():
        value, least = network_args[argument], 0 if argument == "depth" else 1
        if isinstance(value, (str, float)) or (isinstance(value, int) and value < least):
            said = f"{argument} of network '{name}' is {value}"
            raise StructuredInitError(f"{said}: it must be a whole number from {least}")
    sizes = {"num_classes": num_classes, "image_size": image_size, "in_channels": in_channels}
    if compact_arguments(name) is None and (token_softmax := network_args.pop("token_softmax", None)) is not None:
        return place_token_softmax(create_network(name, **sizes, **network_args), **token_softmax)
    try:
        return _family(name)[0](**sizes, **network_args)
    except StructuredInitError:
        raise
    except Exception as error:  # timm refuses sizes by whatever they break
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if not unknown or unknown[1] not in network_args:
            said = f"{network_args or sizes}: {one_line(error) or type(error).__name__}"
            raise StructuredInitError(f"network '{name}' cannot be built with {said}") from error
        near = nearest(unknown[1], _argument_names(name))
        if unknown[1] in _argument_names("") or not near.startswith("did"):  # left over from another network
            near = "set network_args anew, as in --model.network_args=null"
        raise StructuredInitError(f"network '{name}' takes no argument '{unknown[1]}': {near}") from error


def _family(name: str) -> tuple[Callable[..., nn.Module], tuple[Callable[..., Any], ...]]:
    """Return what builds a network of a name, and the functions whose arguments it takes."""
    if name in PRESETS:
        return partial(vision_transformer, **PRESETS[name]), (vision_transformer, VisionTransformer.__init__)
    if compact_arguments(name):
        return partial(compact_transformer, name), (compact_transformer, CompactTransformer, CompactEncoder)
    if mixer := convmixer_sizes(name):
        return partial(convmixer, **mixer), (convmixer, ConvMixer.__init__)
    if name in CONVNEXTS:
        return partial(convnext, name), (convnext, ConvNeXt.__init__)
    if name in LIPSCHITZ_NETWORKS:
        return partial(lipschitz_network, name), (lipschitz_network,)
    return partial(_timm_network, name), (vision_transformer, VisionTransformer.__init__)


def _timm_network(name: str, *, image_size: int, in_channels: int, **network_args: Any) -> nn.Module:
    """Build a timm model at an image size, if its family has one."""
    if not name.startswith(("hf-hub:", "hf_hub:", "local-dir:")) and not timm.is_model(name):
        near = nearest(name, network_names())
        known = ", ".join([*PRESETS, "cct_7_3x1_32", *CONVMIXERS, *CONVNEXTS, *LIPSCHITZ_NETWORKS])
        hint = near if near.startswith("did") else f"choose from {known}, or a model of timm"
        if "." in name:
            hint = f"a class of yours is given as --model.network.class_path={name}"
        raise StructuredInitError(f"unknown network '{name}': {hint}")
    if nulls := [argument for argument, value in network_args.items() if value is None]:
        raise StructuredInitError(
            f"network '{name}': timm leaves out what is null, so its own default would hold: give {', '.join(nulls)} a "
            "value"
        )
    try:
        network = timm.create_model(name, img_size=image_size, in_chans=in_channels, **network_args)
    except TypeError as error:  # convolutional families have no img_size
        if "img_size" not in str(error):
            raise
        network = timm.create_model(name, in_chans=in_channels, **network_args)
    # timm would silently crop the image to whole patches.
    patch_size = getattr(getattr(network, "patch_embed", None), "patch_size", None)
    sides = {int(side) for side in patch_size} if isinstance(patch_size, (tuple, list)) else set()
    for side in sides:
        if image_size % side:
            raise StructuredInitError(f"patch_size {side} of '{name}' does not divide image_size {image_size}")
    return network


def _argument_names(network: str) -> set[str]:
    """Return the argument names worth suggesting: those of the network's own family, else of vision transformers."""
    own = {name for function in _family(network)[1] for name in inspect.signature(function).parameters}
    return {*own, "token_softmax"} - {"self"}

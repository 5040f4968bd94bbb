"""Put a TokenSoftmaxValue into the attention of a network that was just built."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from torch import nn

from lightning_modules.networks.token_softmax.timm_attention import place_in_timm, timm_attentions
from lightning_modules.networks.token_softmax.transformers_attention import place_in_transformers
from structured_init.errors import StructuredInitError, nearest
from structured_init.layers import TokenSoftmaxValue
from structured_init.sites.attention import ATTENTION
from structured_init.sites.select import Where
from structured_init.sites.unknown import looks_like_attention


def place_token_softmax(
    network: nn.Module, *, where: Where = None, per_head: bool = False, **arguments: Any
) -> nn.Module:
    """Let every attention layer of a network attend to a :class:`TokenSoftmaxValue` in place of its values.

    Call it where the network is constructed: a learnable α has to be there before the optimizer. Weights stay as they
    are. timm's ``Attention`` modules are swapped for a subclass under the same names; models of transformers are set
    to the implementation ``token_softmax`` of its attention interface.

    Args:
        network: a model of timm or transformers, or a module around one; changed in place.
        where: which attention layers, by name; see :func:`structured_init.sites.select.selects`.
        per_head: an α for every value head.
        arguments: of :class:`TokenSoftmaxValue`: ``mode``, ``scale``, ``alpha``, ``learnable``.

    Returns:
        The same network.

    Raises:
        StructuredInitError: an unknown argument, no attention layer of a known kind, or none that ``where`` selects.
    """
    check_arguments(arguments)
    found = timm_attentions(network)
    placed = place_in_timm(network, found, where, per_head, arguments)
    hosts = _pretrained_models(network)
    placed += place_in_transformers(hosts, where, per_head, arguments)
    if placed:
        return network
    if found or hosts:
        names = ", ".join(list(found)[:4]) or type(hosts[0][1]).__name__
        raise StructuredInitError(f"token_softmax: where={where!r} selects no attention layer (there are {names}, …)")
    named = network.named_modules()
    kinds = {type(module).__name__ for name, module in named if looks_like_attention(name, module, ATTENTION)}
    raise StructuredInitError(
        "token_softmax works on timm's Attention and on models of transformers with its attention interface; "
        f"{type(network).__name__} has {', '.join(sorted(kinds)) or 'no attention'}"
    )


def check_arguments(arguments: dict[str, Any]) -> None:
    """Refuse arguments that TokenSoftmaxValue does not take, naming the nearest.

    Raises:
        StructuredInitError: there is one.
    """
    known = {*inspect.signature(TokenSoftmaxValue).parameters, "where", "per_head"} - {"num_heads"}
    for name in arguments:
        if name not in known:
            raise StructuredInitError(f"TokenSoftmaxValue takes no argument '{name}': {nearest(name, known)}")


def _pretrained_models(network: nn.Module) -> list[tuple[str, Any]]:
    """Return the outermost models of transformers, which need not be installed."""
    utils = sys.modules.get("transformers.modeling_utils")
    if utils is None:
        return []
    found: list[tuple[str, Any]] = []
    for name, module in network.named_modules():
        within = any(outer == "" or name.startswith(f"{outer}.") for outer, _ in found)
        if isinstance(module, utils.PreTrainedModel) and not within:
            found.append((name, module))
    return found

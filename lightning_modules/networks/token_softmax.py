"""Token softmax by name: a :class:`TokenSoftmaxValue` in the attention of timm's and transformers' networks.

The equation stands in ``structured_init/layers/token_softmax.py``; here, where a network takes it.

Letters: B batch, N tokens, D width, H heads, k head_dim.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

from timm.layers import Attention
from torch import Tensor, nn

from structured_init.arguments import check_takes
from structured_init.errors import StructuredInitError
from structured_init.hosts.attention import looks_like_attention
from structured_init.hosts.registry import Where, selects
from structured_init.layers import TokenSoftmaxValue


def place_token_softmax(
    network: nn.Module, *, where: Where = None, per_head: bool = False, **arguments: Any
) -> nn.Module:
    """Let every attention layer of a network attend to a :class:`TokenSoftmaxValue` in place of its values.

    Call it where the network is constructed: a learnable α has to be there before the optimizer. Weights stay as they
    are. timm's ``Attention`` modules are swapped for a subclass under the same names; models of transformers are set
    to the implementation ``token_softmax`` of its attention interface.

    Args:
        network: a model of timm or transformers, or a module around one; changed in place.
        where: which attention layers, by name; see :func:`structured_init.hosts.registry.selects`.
        per_head: an α for every value head.
        arguments: of :class:`TokenSoftmaxValue`: ``mode``, ``scale``, ``alpha``, ``learnable``.

    Returns:
        The same network.

    Raises:
        StructuredInitError: an unknown argument, no attention layer of a known kind, or none that ``where`` selects.
    """
    check_arguments(arguments)
    # Of timm's class itself: subclasses differ.
    found = {name: module for name, module in network.named_modules() if type(module) is Attention}
    chosen = {name: module for name, module in found.items() if selects(where, name, module)}
    for name, module in chosen.items():
        values = TokenSoftmaxValue(**arguments, num_heads=module.num_heads if per_head else 1)
        weight = module.qkv.weight
        network.set_submodule(name, TokenSoftmaxAttention(module, values.to(weight.device, weight.dtype)))
    hosts = _pretrained_models(network)
    if place_in_transformers(hosts, where, per_head, arguments) or chosen:
        return network
    if found or hosts:
        names = ", ".join(list(found)[:4]) or type(hosts[0][1]).__name__
        raise StructuredInitError(f"token_softmax: where={where!r} selects no attention layer (there are {names}, …)")
    named = network.named_modules()
    kinds = {type(module).__name__ for name, module in named if looks_like_attention(name, module)}
    raise StructuredInitError(
        "token_softmax works on timm's Attention and on models of transformers with its attention interface; "
        f"{type(network).__name__} has {', '.join(sorted(kinds)) or 'no attention'}"
    )


def check_arguments(arguments: dict[str, Any]) -> None:
    """Refuse arguments that TokenSoftmaxValue does not take, naming the nearest."""
    known = {*inspect.signature(TokenSoftmaxValue).parameters, "where", "per_head"} - {"num_heads"}
    check_takes("TokenSoftmaxValue", arguments, known)


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


class TokenSoftmaxAttention(Attention):
    """An ``Attention`` of timm that was built before, with its modules and names, and ``token_softmax`` beside them.

    Its modules are taken over, not copied.
    """

    def __init__(self, attention: Attention, values: TokenSoftmaxValue) -> None:
        nn.Module.__init__(self)
        for name, number in vars(attention).items():
            if not name.startswith("_"):
                setattr(self, name, number)
        for name, module in attention.named_children():
            self.add_module(name, module)
        self.token_softmax = values
        self.train(attention.training)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Attend among tokens (B, N, D) as timm does, to mixed values."""
        batch, tokens, _ = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.num_heads, self.head_dim)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        query, key = self.q_norm(query), self.k_norm(key)
        dropout = self.attn_drop.p if self.training else 0.0
        attended = self.token_softmax.attend(query, key, value, attn_mask, is_causal, dropout, self.scale)
        attended = self.norm(attended.transpose(1, 2).reshape(batch, tokens, self.attn_dim))
        if self.gate is not None:
            attended = attended * self.gate(x).sigmoid()
        return self.proj_drop(self.proj(attended))


NAME = "token_softmax"


def token_softmax_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **host_arguments: Any,
) -> tuple[Tensor, None]:
    """Attend from (B, H, N, k) to (B, Hkv, M, k), the cached tokens among them; returns (B, N, H, k).

    The cache holds the values themselves: they are mixed at each call, over the tokens that the query sees by then, so
    that generating with a cache and without one give the same. A host that asks for something else than scaled dot
    products is refused.
    """
    if any(host_arguments.get(name) is not None for name in ("softcap", "position_bias", "s_aux")):
        raise StructuredInitError(f"token_softmax: {type(module).__name__} caps or biases its logits")
    groups = getattr(module, "num_key_value_groups", 1)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and attention_mask is None and query.shape[2] > 1  # one query sees all that is cached
    if getattr(module, NAME, None) is None:  # a layer that was not chosen
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal=is_causal, **host_arguments
        )
    attended = module.token_softmax.attend(
        query, key, value, attention_mask, causal, dropout, scaling, enable_gqa=groups > 1
    )
    return attended.transpose(1, 2).contiguous(), None


def place_in_transformers(
    models: list[tuple[str, Any]], where: Where, per_head: bool, arguments: dict[str, Any]
) -> int:
    """Give the chosen attention layers a TokenSoftmaxValue and set the models' implementation; return how many."""
    if not models:
        return 0
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    placed = 0
    for prefix, model in models:
        chosen = []
        for name, module in model.named_modules():
            weight = next(module.parameters(), None)
            # Transformers marks by causality what hands queries, keys and values to the interface.
            attends = hasattr(module, "is_causal") and hasattr(module, "config") and weight is not None
            if attends and selects(where, f"{prefix}.{name}".lstrip("."), module):
                chosen.append((module, weight))
        for module, weight in chosen:
            named = (getattr(module, name, None) for name in ("num_heads", "num_attention_heads", "n_heads"))
            heads = next((each for each in named if isinstance(each, int)), module.config.num_attention_heads)
            heads = heads // getattr(module, "num_key_value_groups", 1) if per_head else 1
            module.token_softmax = TokenSoftmaxValue(**arguments, num_heads=heads).to(weight.device, weight.dtype)
        if chosen:
            if not getattr(model, "_supports_attention_backend", False):
                raise StructuredInitError(
                    f"token_softmax: {type(model).__name__} does not go through transformers' attention interface"
                )
            AttentionInterface.register(NAME, token_softmax_forward)
            AttentionMaskInterface.register(NAME, sdpa_mask)
            model.set_attn_implementation(NAME)
        placed += len(chosen)
    return placed

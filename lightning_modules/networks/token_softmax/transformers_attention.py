"""The implementation ``token_softmax`` of transformers' attention interface.

Letters: B batch, H heads, Hkv key–value heads, N queries, M tokens, k head_dim.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from structured_init.errors import StructuredInitError
from structured_init.layers import TokenSoftmaxValue
from structured_init.sites.select import Where, selects

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
    that generating with a cache and without one give the same.

    Raises:
        StructuredInitError: the host asks for something else than scaled dot products.
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
    placed = 0
    for prefix, model in models:
        layers = {f"{prefix}.{name}".lstrip("."): module for name, module in model.named_modules() if _attends(module)}
        chosen = {name: module for name, module in layers.items() if selects(where, name, module)}
        for module in chosen.values():
            heads = _value_heads(module) if per_head else 1
            weight = next(module.parameters())
            module.token_softmax = TokenSoftmaxValue(**arguments, num_heads=heads).to(weight.device, weight.dtype)
        if chosen:
            _register()
            _set_implementation(model)
        placed += len(chosen)
    return placed


def _attends(module: nn.Module) -> bool:
    """Tell whether a module hands queries, keys and values to the interface: transformers marks those by causality."""
    return hasattr(module, "is_causal") and hasattr(module, "config") and next(module.parameters(), None) is not None


def _value_heads(module: Any) -> int:
    """Return the number of value heads."""
    for name in ("num_heads", "num_attention_heads", "n_heads"):
        if isinstance(heads := getattr(module, name, None), int):
            return heads // getattr(module, "num_key_value_groups", 1)
    return module.config.num_attention_heads // getattr(module, "num_key_value_groups", 1)


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, token_softmax_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def _set_implementation(model: Any) -> None:
    if not getattr(model, "_supports_attention_backend", False):
        raise StructuredInitError(
            f"token_softmax: {type(model).__name__} does not go through transformers' attention interface"
        )
    model.set_attn_implementation(NAME)

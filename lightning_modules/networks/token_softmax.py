"""Token softmax by name: a :class:`TokenSoftmaxValue` in the attention of timm's and transformers' networks.

The equation stands in ``structured_init/layers/token_softmax.py``; here, where a network takes it.

Letters: B batch, N queries, M tokens, D width, H heads, Hkv value heads, k head_dim.
"""

from __future__ import annotations

import sys
from typing import Any

from timm.layers import Attention
from torch import Tensor, nn

from structured_init.layers import TokenSoftmaxValue
from structured_init.util.arguments import check_takes
from structured_init.util.errors import StructuredInitError

NAME = "token_softmax"
ARGUMENTS = ("mode", "scale", "alpha", "learnable")


def place_token_softmax(network: nn.Module, **arguments: Any) -> nn.Module:
    """Let every attention layer of a network attend to a :class:`TokenSoftmaxValue` in place of its values.

    Call it where the network is constructed: a learnable α has to be there before the optimizer. Weights stay as they
    are. timm's ``Attention`` modules become a subclass; models of transformers are set
    to the implementation ``token_softmax`` of its attention interface.

    Args:
        network: a model of timm or transformers, or a module around one; changed in place.
        arguments: of :class:`TokenSoftmaxValue`: ``mode``, ``scale``, ``alpha``, ``learnable``.

    Returns:
        The same network.

    Raises:
        StructuredInitError: an unknown argument, or no attention layer of a known kind.
    """
    check_takes("TokenSoftmaxValue", arguments, ARGUMENTS)
    for module in network.modules():
        if type(module) is Attention:  # of timm's class itself: subclasses differ
            weight = module.qkv.weight
            module.__class__ = TokenSoftmaxAttention
            module.token_softmax = TokenSoftmaxValue(**arguments).to(weight.device, weight.dtype)
    place_in_transformers(network, arguments)
    if not any(isinstance(module, TokenSoftmaxValue) for module in network.modules()):
        raise StructuredInitError(
            "token_softmax works on timm's Attention and on models of transformers with its attention interface; "
            f"{type(network).__name__} has neither"
        )
    return network


class TokenSoftmaxAttention(Attention):
    """What an ``Attention`` of timm that was built before becomes, with ``token_softmax`` beside its modules."""

    token_softmax: TokenSoftmaxValue

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Attend among tokens (B, N, D) as timm does, to mixed values."""
        batch, tokens, _ = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.num_heads, self.head_dim)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        query, key = self.q_norm(query), self.k_norm(key)
        dropout = self.attn_drop.p if self.training else 0.0
        call = {"is_causal": is_causal, "dropout_p": dropout, "scale": self.scale}
        attended = self.token_softmax.attend(query, key, value, attn_mask, **call)
        attended = self.norm(attended.transpose(1, 2).reshape(batch, tokens, self.attn_dim))
        if self.gate is not None:
            attended = attended * self.gate(x).sigmoid()
        return self.proj_drop(self.proj(attended))


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
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and attention_mask is None and query.shape[2] > 1  # one query sees all that is cached
    call = {"is_causal": causal, "dropout_p": dropout, "scale": scaling}
    attended = module.token_softmax.attend(query, key, value, attention_mask, **call)
    return attended.transpose(1, 2).contiguous(), None


def place_in_transformers(network: nn.Module, arguments: dict[str, Any]) -> None:
    """Give attention layers of transformers a TokenSoftmaxValue, and set the implementation of their models."""
    utils = sys.modules.get("transformers.modeling_utils")  # it need not be installed
    if utils is None:
        return
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, token_softmax_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    for model in network.modules():
        if not isinstance(model, utils.PreTrainedModel):
            continue
        if not model._supports_attention_backend:
            raise StructuredInitError(
                f"token_softmax: {type(model).__name__} does not go through transformers' attention interface"
            )
        model.set_attn_implementation(NAME)
        # Transformers marks by causality what hands queries, keys and values to the interface.
        attending = [module for module in model.modules() if hasattr(module, "is_causal") and hasattr(module, "config")]
        for module in attending:
            module.token_softmax = TokenSoftmaxValue(**arguments).to(model.device, model.dtype)

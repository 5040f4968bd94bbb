"""timm's Attention with a TokenSoftmaxValue.

Letters: B batch, N tokens, D width, H heads, k head_dim.
"""

from __future__ import annotations

from typing import Any

from timm.layers import Attention
from torch import Tensor, nn

from structured_init.layers import TokenSoftmaxValue
from structured_init.sites.select import Where, selects


class TokenSoftmaxAttention(Attention):
    """An ``Attention`` of timm that was built before, with its modules and names, and ``token_softmax`` beside them.

    Args:
        attention: what it stands for; its modules are taken over, not copied.
        values: mixes the values.
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


def timm_attentions(network: nn.Module) -> dict[str, Attention]:
    """Return the attention layers that can be swapped, by name: of timm's class itself, since subclasses differ."""
    return {name: module for name, module in network.named_modules() if type(module) is Attention}


def place_in_timm(
    network: nn.Module, attentions: dict[str, Attention], where: Where, per_head: bool, arguments: dict[str, Any]
) -> int:
    """Swap the attention layers that ``where`` selects; return how many."""
    chosen = {name: module for name, module in attentions.items() if selects(where, name, module)}
    for name, module in chosen.items():
        values = TokenSoftmaxValue(**arguments, num_heads=module.num_heads if per_head else 1)
        weight = module.qkv.weight
        network.set_submodule(name, TokenSoftmaxAttention(module, values.to(weight.device, weight.dtype)))
    return len(chosen)

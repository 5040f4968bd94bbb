"""Attention and linear attention that take the place of a state-space layer in a Mamba network.

Letters: B batch, L tokens, D embed_dim, H heads, k head_dim.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from structured_init import AttentionLayout, Projection, register_attention
from structured_init.analysis import register_capture
from structured_init.errors import StructuredInitError


class Mixer(nn.Module):
    """Four projections, as attention has them; without positions, which the layers around bring.

    Args:
        embed_dim: D.
        num_heads: H, a divisor of D.

    Raises:
        StructuredInitError: D is not a multiple of H.
    """

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise StructuredInitError(f"a width of {embed_dim} does not divide into {num_heads} heads")
        self.num_heads = num_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(embed_dim, embed_dim, bias=False) for _ in range(4)
        )

    def heads(self, hidden_states: Float[Tensor, "B L D"]) -> list[Float[Tensor, "B H L k"]]:
        """Return queries, keys and values."""
        projections = (self.q_proj, self.k_proj, self.v_proj)
        return [each(hidden_states).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in projections]

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Float[Tensor, "B H L k"]:
        """Return what every token takes from those before it."""
        raise NotImplementedError

    def forward(self, hidden_states: Float[Tensor, "B L D"], **state: Any) -> Float[Tensor, "B L D"]:
        """Return the mixed tokens; what a Mamba network passes besides is not used."""
        return self.o_proj(self.mix(*self.heads(hidden_states)).transpose(1, 2).flatten(2))


class AttentionMixer(Mixer):
    """Causal softmax attention."""

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)


class LinearAttentionMixer(Mixer):
    """Causal linear attention, y_i = Σ_{j ≤ i} (q_i · k_j) v_j / √k, without a feature map or a normalizer.

    It is what a state-space layer without decay computes: the reference point of 2410.11135.
    """

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return linear_maps(query, key) @ value


def linear_maps(query: Float[Tensor, "B H L k"], key: Float[Tensor, "B H L k"]) -> Float[Tensor, "B H L L"]:
    """Return the lower triangle of Q Kᵀ / √k."""
    return (query @ key.mT / query.shape[-1] ** 0.5).tril()


@register_attention(Mixer)
def _layout(module: Mixer) -> AttentionLayout:
    embed_dim, heads = module.q_proj.in_features, module.num_heads
    query, key, value = (
        Projection(each.weight, heads, embed_dim // heads) for each in (module.q_proj, module.k_proj, module.v_proj)
    )
    return AttentionLayout(query, key, value, Projection(module.o_proj.weight, heads, embed_dim // heads, axis=1))


@register_capture(LinearAttentionMixer)
def _linear_maps(module: LinearAttentionMixer, args: tuple, kwargs: dict, output: object) -> Tensor:
    """The moduli, every row summing to one, as for state-space layers."""
    query, key, _ = module.heads(args[0] if args else kwargs["hidden_states"])
    maps = linear_maps(query.float(), key.float()).abs()
    return maps / maps.sum(-1, keepdim=True).clamp(min=1e-30)

"""Gated delta rules of transformers: linear attention whose state decays and is corrected.

S_t = e^{g_t} S_{t−1}; S_t += β_t b_tᵀ (x_t − b_t S_t); o_t = c_t S_t / √N, with g = −e^{A_log} softplus(u W_Δ + b_Δ).

Letters: D embed_dim, G heads of keys, H heads of values, N width of a key, P width of a value, r = H/G.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from structured_init.layout import Projection
from structured_init.sites.state_space import StateSpaceLayout, register_state_space

HF = "transformers.models"


@register_state_space(f"{HF}.qwen3_next.modeling_qwen3_next.Qwen3NextGatedDeltaNet")
def qwen3_next(module: Any) -> StateSpaceLayout:
    """``in_proj_qkvz`` has [c N | b N | x r·P | z r·P] for every head of keys, ``in_proj_ba`` [β r | Δ r]."""
    groups, states, shared = module.num_k_heads, module.head_k_dim, module.num_v_heads // module.num_k_heads
    step = 2 * states + 2 * shared * module.head_v_dim
    weight = module.in_proj_qkvz.weight
    c, b = (Projection(weight, groups, states, start=start, step=step) for start in (0, states))
    return _layout(module, Projection(module.in_proj_ba.weight, groups, shared, start=shared, step=2 * shared), b, c)


@register_state_space(f"{HF}.qwen3_5.modeling_qwen3_5.Qwen3_5GatedDeltaNet")
@register_state_space(f"{HF}.qwen3_5_moe.modeling_qwen3_5_moe.Qwen3_5MoeGatedDeltaNet")
def qwen3_5(module: Any) -> StateSpaceLayout:
    """``in_proj_qkv`` has [c G·N | b G·N | x H·P], ``in_proj_a`` is W_Δ."""
    groups, states, weight = module.num_k_heads, module.head_k_dim, module.in_proj_qkv.weight
    c, b = (Projection(weight, groups, states, start=start) for start in (0, groups * states))
    return _layout(module, Projection(module.in_proj_a.weight, 1, module.num_v_heads), b, c)


def _layout(module: nn.Module, dt: Projection, b: Projection, c: Projection) -> StateSpaceLayout:
    return StateSpaceLayout(
        A_log=module.A_log,
        dt=dt,
        dt_bias=module.dt_bias,
        B=b,
        C=c,
        conv_weight=module.conv1d.weight,
        conv_bias=module.conv1d.bias,
        D=None,
        head_dim=module.head_v_dim,
        normalized=True,
        match_norm=True,
        delta=True,
    )

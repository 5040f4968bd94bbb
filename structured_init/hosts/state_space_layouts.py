"""Mamba and Mamba-2 of mamba-ssm, and of transformers and its hybrids, which name their parameters alike.

Letters: B batch, L tokens, D embed_dim, I inner width, H heads, P head_dim, G groups, N state_dim, R rank of Δ.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from structured_init.hosts.layout import Projection
from structured_init.hosts.state_space import Selection, StateSpaceLayout, register_state_space


@register_state_space("transformers.models.mamba.modeling_mamba.MambaMixer")
@register_state_space("transformers.models.falcon_mamba.modeling_falcon_mamba.FalconMambaMixer")
@register_state_space("transformers.models.jamba.modeling_jamba.JambaMambaMixer")
@register_state_space("mamba_ssm.modules.mamba_simple.Mamba")
def mamba(module: Any) -> StateSpaceLayout:
    """``x_proj.weight`` (R + 2N, I) holds Δ's first factor, B and C; they read x behind convolution and SiLU."""
    channels, states = module.A_log.shape
    rank = module.dt_proj.in_features
    return _layout(
        module,
        dt=Projection(module.dt_proj.weight, heads=1, head_dim=channels),
        B=Projection(module.x_proj.weight, heads=1, head_dim=states, start=rank),
        C=Projection(module.x_proj.weight, heads=1, head_dim=states, start=rank + states),
        dt_bias=module.dt_proj.bias,
        select=lambda hidden: _mamba_selection(module, hidden),
        embed_dim=module.in_proj.weight.shape[1],
        match_norm=hasattr(module, "b_layernorm"),
    )


@register_state_space("transformers.models.mamba2.modeling_mamba2.Mamba2Mixer")
@register_state_space("transformers.models.bamba.modeling_bamba.BambaMixer")
@register_state_space("transformers.models.falcon_h1.modeling_falcon_h1.FalconH1Mixer")
@register_state_space("transformers.models.granitemoehybrid.modeling_granitemoehybrid.GraniteMoeHybridMambaLayer")
@register_state_space("transformers.models.nemotron_h.modeling_nemotron_h.NemotronHMamba2Mixer")
@register_state_space("transformers.models.zamba2.modeling_zamba2.Zamba2MambaMixer")
@register_state_space("mamba_ssm.modules.mamba2.Mamba2")
def mamba2(module: Any) -> StateSpaceLayout:
    """The last rows of ``in_proj.weight`` are [z I | x I | B G·N | C G·N | Δ H]; all but z and Δ are convolved."""
    heads, head_dim, groups, states = _mamba2_sizes(module)
    weight = module.in_proj.weight
    steps = weight.shape[0] - heads
    return _layout(
        module,
        dt=Projection(weight, heads=1, head_dim=heads, start=steps),
        B=Projection(weight, heads=groups, head_dim=states, start=steps - 2 * groups * states),
        C=Projection(weight, heads=groups, head_dim=states, start=steps - groups * states),
        head_dim=head_dim,
        dt_limit=_dt_limit(module),
        select=lambda hidden: _mamba2_selection(module, hidden),
        embed_dim=weight.shape[1],
        normalized=getattr(module, "mamba_rms_norm", hasattr(module, "norm")),
    )


def _mamba_selection(module: Any, hidden: Float[Tensor, "B L D"]) -> Selection:
    channels, states = module.A_log.shape
    rank = module.dt_proj.in_features
    inner = F.linear(hidden, module.in_proj.weight, module.in_proj.bias)[..., :channels]
    inner = _short_convolution(module, inner)
    low_rank, B, C = F.linear(inner, module.x_proj.weight).split([rank, states, states], dim=-1)
    if hasattr(module, "b_layernorm"):  # Falcon Mamba and Jamba
        low_rank, B, C = module.dt_layernorm(low_rank), module.b_layernorm(B), module.c_layernorm(C)
    step = F.softplus(F.linear(low_rank, module.dt_proj.weight, module.dt_proj.bias))
    return Selection(inner[..., None], step, B[:, :, None], C[:, :, None])


def _mamba2_selection(module: Any, hidden: Float[Tensor, "B L D"]) -> Selection:
    heads, head_dim, groups, states = _mamba2_sizes(module)
    scaled = hidden * getattr(module, "ssm_in_multiplier", 1.0)  # Falcon H1
    projected = F.linear(scaled, module.in_proj.weight, module.in_proj.bias) * getattr(module, "mup_vector", 1.0)
    convolved = module.conv1d.weight.shape[0]
    *_, mixed, step = projected.split([projected.shape[-1] - convolved - heads, convolved, heads], dim=-1)
    values, B, C = _short_convolution(module, mixed).split([heads * head_dim, *2 * [groups * states]], dim=-1)
    step = F.softplus(step + module.dt_bias).clamp(*_dt_limit(module))
    B, C = (each.unflatten(-1, (groups, states)) for each in (B, C))
    return Selection(values.unflatten(-1, (heads, head_dim)), step, B, C)


def _short_convolution(module: Any, inner: Float[Tensor, "B L channels"]) -> Float[Tensor, "B L channels"]:
    """The causal convolution and its activation, SiLU in every host."""
    weight, bias = module.conv1d.weight, module.conv1d.bias
    padded = F.pad(inner.mT, (weight.shape[-1] - 1, 0))
    return module.act(F.conv1d(padded, weight, bias, groups=weight.shape[0])).mT


def _mamba2_sizes(module: Any) -> tuple[int, int, int, int]:
    """Return H, P, G and N, by the names of either host."""
    heads = module.A_log.shape[0]
    head_dim = module.head_dim if hasattr(module, "head_dim") else module.headdim
    groups = module.n_groups if hasattr(module, "n_groups") else module.ngroups
    return heads, head_dim, groups, (module.conv1d.weight.shape[0] - heads * head_dim) // (2 * groups)


def _dt_limit(module: Any) -> tuple[float, float]:
    low, high = module.time_step_limit if hasattr(module, "time_step_limit") else module.dt_limit
    return float(low), float(high)


# Gated delta rules of transformers: linear attention whose state decays and is corrected.
# S_t = e^{g_t} S_{t−1}; S_t += β_t b_tᵀ (x_t − b_t S_t); o_t = c_t S_t / √N, with g = −e^{A_log} softplus(u W_Δ + b_Δ).
# Letters: D embed_dim, G heads of keys, H heads of values, N width of a key, P width of a value, r = H/G.

HF = "transformers.models"
DELTA = {"normalized": True, "match_norm": True, "delta": True}


@register_state_space(f"{HF}.qwen3_next.modeling_qwen3_next.Qwen3NextGatedDeltaNet")
def qwen3_next(module: Any) -> StateSpaceLayout:
    """``in_proj_qkvz`` has [c N | b N | x r·P | z r·P] for every head of keys, ``in_proj_ba`` [β r | Δ r]."""
    groups, states, shared = module.num_k_heads, module.head_k_dim, module.num_v_heads // module.num_k_heads
    step = 2 * states + 2 * shared * module.head_v_dim
    weight = module.in_proj_qkvz.weight
    c, b = (Projection(weight, groups, states, start=start, step=step) for start in (0, states))
    dt = Projection(module.in_proj_ba.weight, groups, shared, start=shared, step=2 * shared)
    return _layout(module, dt, b, c, head_dim=module.head_v_dim, **DELTA)


@register_state_space(f"{HF}.qwen3_5.modeling_qwen3_5.Qwen3_5GatedDeltaNet")
@register_state_space(f"{HF}.qwen3_5_moe.modeling_qwen3_5_moe.Qwen3_5MoeGatedDeltaNet")
def qwen3_5(module: Any) -> StateSpaceLayout:
    """``in_proj_qkv`` has [c G·N | b G·N | x H·P], ``in_proj_a`` is W_Δ."""
    groups, states, weight = module.num_k_heads, module.head_k_dim, module.in_proj_qkv.weight
    c, b = (Projection(weight, groups, states, start=start) for start in (0, groups * states))
    dt = Projection(module.in_proj_a.weight, 1, module.num_v_heads)
    return _layout(module, dt, b, c, head_dim=module.head_v_dim, **DELTA)


def _layout(module: Any, dt: Projection, B: Projection, C: Projection, **others: Any) -> StateSpaceLayout:
    """Add what all of them call alike; delta rules have no skip."""
    named = {"A_log": module.A_log, "D": getattr(module, "D", None), "dt_bias": getattr(module, "dt_bias", None)}
    convolution = {"conv_weight": module.conv1d.weight, "conv_bias": module.conv1d.bias}
    return StateSpaceLayout(dt=dt, B=B, C=C, **convolution, **(named | others))

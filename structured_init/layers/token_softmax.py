"""softmaxᵀ(V) in place of V: a softmax over tokens for every coordinate of the values, as functions and as a module.

Letters: B batch, H heads, Hkv value heads, N queries, M tokens, k head_dim, d value_dim; A the attention map.

Source: the proposal softmax(c K Qᵀ) softmaxᵀ(V) of anhinga/JuliaCon2021-poster, "request for plot". That the softmax of
a query runs over the tokens that it may see, and how one call of fused attention computes it, are ours.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from structured_init.util.arguments import check_choice
from structured_init.util.errors import StructuredInitError

# Half of the range of values, in nats, whose exponentials and their sums stay finite and normal.
HALF_RANGE = {torch.float32: 75.0, torch.float64: 650.0}
# What is added to a logit to hide a token: exp(−1000) is 0 in float64 too, and no bias of positions is as low.
HIDDEN = -1e3
Mode = Literal["replace", "add", "subtract", "remix"]
# Mode → how much of α is taken from V, and how much of α·scale·softmaxᵀ(V) is given; to replace is to mix at α = 1.
SHARES = {"replace": (1, 1), "add": (0, 1), "subtract": (0, -1), "remix": (1, 1)}


def mix_values(
    values: Float[Tensor, "*batch tokens value_dim"],
    keep: Float[Tensor, ...] | float,
    gain: Float[Tensor, ...] | float,
    visible: Bool[Tensor, ...] | None = None,
) -> Float[Tensor, "*batch tokens value_dim"]:
    """Return keep·V_jd + gain·exp V_jd / Σ_l exp V_ld; the softmax is in float32 or better inside.

    The factors are numbers or broadcast against V. ``visible`` (…, M) is true for the tokens that count; the softmax
    of the others is 0.
    """
    hidden = values if visible is None else values.masked_fill(~visible[..., None], torch.finfo(values.dtype).min)
    softmaxed = hidden.softmax(-2, dtype=torch.promote_types(values.dtype, torch.float32)).to(values.dtype)
    return (keep * values + gain * softmaxed).to(values.dtype)


def token_softmax_attention(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads tokens head_dim"],
    value: Float[Tensor, "batch kv_heads tokens value_dim"],
    keep: Float[Tensor, ...] | float,
    gain: Float[Tensor, ...] | float,
    mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    scale: float | None = None,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Return out_id = Σ_j A_ij (keep·V_jd + gain·exp V_jd / Σ_{l visible to i} exp V_ld).

    One call of ``F.scaled_dot_product_attention`` computes it.

    Args:
        query: (B, H, N, k).
        key: (B, Hkv, M, k); each serves H / Hkv neighbouring heads.
        value: V, (B, Hkv, M, d).
        keep: factor on V, a number or (1,).
        gain: factor on softmaxᵀ(V), likewise.
        mask: boolean (true: may look) or added to the logits. What is added hides a token where it is at most
            ``HIDDEN``: masks that are not of −∞ or the smallest number usually hold −1e4 or −1e9.
        is_causal: query i sees the tokens ≤ i, counted from the first.
        dropout_p: of the map.
        scale: factor on the logits; 1/√k when None.

    Raises:
        StructuredInitError: queries see different tokens, and values lie too far apart for their exponentials.
    """
    group = query.shape[1] // value.shape[1]
    if group > 1:
        key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    if is_causal:
        mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
    if mask is None:
        return F.scaled_dot_product_attention(query, key, mix_values(value, keep, gain), None, dropout_p, scale=scale)
    visible = mask if mask.dtype == torch.bool else mask > HIDDEN
    if visible.shape[-2] == 1:  # all queries see the same tokens
        mixed = mix_values(value, keep, gain, visible[..., 0, :])
        return F.scaled_dot_product_attention(query, key, mixed, mask, dropout_p, scale=scale)

    # Each query has a softmax of its own, Σ_j A_ij exp V_jd / Z_id with Z_id = Σ_{l visible} exp V_ld. Z leaves the
    # sum over j, so one attention over [keep·V, gain·exp V] is all that is needed. In float32 or better: lower
    # precisions have no room for the exponentials.
    dtype = torch.promote_types(value.dtype, torch.float32)
    exponentials = centred(value.to(dtype)).exp()
    with torch.autocast(query.device.type, enabled=False):
        sums = visible.to(dtype) @ exponentials
        both = torch.cat([keep * value.to(dtype), gain * exponentials], dim=-1)
        mask = mask.to(dtype) if mask.is_floating_point() else mask
        attended = F.scaled_dot_product_attention(query.to(dtype), key.to(dtype), both, mask, dropout_p, scale=scale)
    kept, softmaxed = attended.split(value.shape[-1], dim=-1)
    smallest = torch.finfo(dtype).tiny  # of a query that sees nothing
    return (kept + softmaxed / sums.clamp_min(smallest)).to(query.dtype)


def centred(values: Float[Tensor, "*batch tokens value_dim"]) -> Float[Tensor, "*batch tokens value_dim"]:
    """Return V minus the middle of each coordinate's range, which every softmax over tokens is blind to."""
    lowest, highest = values.detach().aminmax(dim=-2, keepdim=True)
    apart, most = float((highest - lowest).max()), 2 * HALF_RANGE[values.dtype]
    if apart > most:
        raise StructuredInitError(
            f"values of one coordinate lie {apart:.0f} apart: the softmax over the tokens that each query sees holds "
            f"up to {most:.0f}"
        )
    return values - (lowest + highest) / 2


class TokenSoftmaxValue(nn.Module):
    """Values V mixed with softmaxᵀ(V), their softmax over tokens for every coordinate.

    ========  =================================
    mode      in place of V
    ========  =================================
    replace   scale·softmaxᵀ(V)
    add       V + α·scale·softmaxᵀ(V)
    subtract  V − α·scale·softmaxᵀ(V)
    remix     (1 − α)·V + α·scale·softmaxᵀ(V)
    ========  =================================

    Without V, that is in ``replace`` and in ``remix`` towards α = 1, attention that looks everywhere returns 1/M in
    every coordinate: at the published initialization of CCT-2/3x2 it differs from that by 3e-4 of it. bfloat16 and
    float16 round this away.

    Args:
        mode: one of these.
        scale: factor on softmaxᵀ(V), whose mean over M tokens is 1/M.
        alpha: α at the start, in [0, 1].
        learnable: α is a parameter (1,), which may leave [0, 1].

    Raises:
        StructuredInitError: an unknown mode, α outside of [0, 1], an α for ``replace``.

    Source: anhinga/JuliaCon2021-poster, "request for plot"; the grid V ± α·softmaxᵀ(V) was suggested in its discussion.
    """

    def __init__(self, mode: Mode = "replace", scale: float = 1.0, alpha: float = 1.0, learnable: bool = False) -> None:
        check_choice("TokenSoftmaxValue", mode=(mode, Mode))
        if not 0 <= alpha <= 1:
            raise StructuredInitError(f"alpha must be in [0, 1], not {alpha}")
        if mode == "replace" and (learnable or alpha != 1):
            raise StructuredInitError("mode 'replace' has no alpha: use 'remix', which is the same at alpha = 1")
        super().__init__()
        self.mode, self.scale = mode, float(scale)
        self.alpha = nn.Parameter(torch.tensor([float(alpha)])) if learnable else float(alpha)

    def forward(
        self, values: Float[Tensor, "*batch tokens value_dim"], visible: Bool[Tensor, ...] | None = None
    ) -> Float[Tensor, "*batch tokens value_dim"]:
        """Mix values (B, tokens, D) or (B, H, tokens, d); ``visible`` (…, tokens) is true for tokens that count."""
        return mix_values(values, *self.factors(), visible)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, **call: Any) -> Tensor:
        """Attend to the mixed values; the softmax of each query runs over the tokens that it may see.

        The arguments are those of :func:`~structured_init.layers.token_softmax.token_softmax_attention`.
        """
        return token_softmax_attention(query, key, value, *self.factors(), mask, **call)

    def factors(self) -> tuple[Tensor | float, Tensor | float]:
        """Return the factors on V and on softmaxᵀ(V), numbers or (1,)."""
        taken, given = SHARES[self.mode]
        return 1.0 - taken * self.alpha, given * self.alpha * self.scale

    def extra_repr(self) -> str:
        return f"mode={self.mode}, scale={self.scale:g}, learnable={isinstance(self.alpha, Tensor)}"

"""softmaxᵀ(V) in place of V: a softmax over tokens for every coordinate of the values, as functions and as a module.

Letters: B batch, H heads, Hkv value heads, N queries, M tokens, k head_dim, d value_dim; A the attention map.

Source: the proposal softmax(c K Qᵀ) softmaxᵀ(V) of anhinga/JuliaCon2021-poster, "request for plot". That the softmax of
a query runs over the tokens that it may see, and how one call of fused attention computes it, are ours.
"""

from __future__ import annotations

import warnings
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from structured_init.errors import StructuredInitError, nearest

# Half of the range of values, in nats, whose exponentials and their sums stay finite and normal.
HALF_RANGE = {torch.float32: 75.0, torch.float64: 650.0}
# What is added to a logit to hide a token: exp(−1000) is 0 in float64 too, and no bias of positions is as low.
HIDDEN = -1e3
Mode = Literal["replace", "add", "subtract", "remix"]
MODES = ("replace", "add", "subtract", "remix")


def token_softmax(
    values: Float[Tensor, "*batch tokens value_dim"], visible: Bool[Tensor, ...] | None = None
) -> Float[Tensor, "*batch tokens value_dim"]:
    """Return S_jd = exp V_jd / Σ_l exp V_ld, in float32 or better inside.

    ``visible`` (…, M) is true for the tokens that count; the others get 0.
    """
    if visible is not None:
        values = values.masked_fill(~visible[..., None], torch.finfo(values.dtype).min)
    return values.softmax(-2, dtype=torch.promote_types(values.dtype, torch.float32)).to(values.dtype)


def mix_values(
    values: Float[Tensor, "*batch tokens value_dim"],
    keep: Float[Tensor, ...] | float,
    gain: Float[Tensor, ...] | float,
    visible: Bool[Tensor, ...] | None = None,
) -> Float[Tensor, "*batch tokens value_dim"]:
    """Return keep·V + gain·softmaxᵀ(V); the factors are numbers or broadcast against V."""
    softmaxed = gain * token_softmax(values, visible)
    return softmaxed if _is_zero(keep) else keep * values + softmaxed


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
    enable_gqa: bool = False,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Return out_id = Σ_j A_ij (keep·V_jd + gain·exp V_jd / Σ_{l visible to i} exp V_ld).

    One call of ``F.scaled_dot_product_attention`` computes it, whose arguments have torch's meaning.

    Args:
        query: (B, H, N, k).
        key: (B, Hkv, M, k).
        value: V, (B, Hkv, M, d).
        keep: factor on V, a number or (Hkv or 1, 1, 1).
        gain: factor on softmaxᵀ(V), likewise.
        mask: boolean (true: may look) or added to the logits. What is added hides a token where it is at most
            ``HIDDEN``: masks that are not of −∞ or the smallest number usually hold −1e4 or −1e9.
        is_causal: query i sees the tokens ≤ i, counted from the first.
        dropout_p: of the map.
        scale: factor on the logits; 1/√k when None.
        enable_gqa: whether each value serves H / Hkv neighbouring heads.
    """
    visible = mask if mask is None or mask.dtype == torch.bool else mask > HIDDEN
    if not is_causal and (visible is None or visible.ndim < 2 or visible.shape[-2] == 1):
        seen = visible[..., 0, :] if visible is not None and visible.ndim >= 2 else visible
        if seen is not None and seen.ndim >= 2 and seen.shape[-2] != 1:  # a head of its own for each mask
            key, value, keep, gain = _repeated(query.shape[1], key, value, keep, gain)
            enable_gqa = False
        mixed = mix_values(value, keep, gain, seen).to(value.dtype)
        return F.scaled_dot_product_attention(
            query, key, mixed, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    key, value, keep, gain = _repeated(query.shape[1], key, value, keep, gain)
    return _per_query(query, key, value, keep, gain, mask, visible, is_causal, dropout_p, scale)


def _per_query(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keep: Tensor | float,
    gain: Tensor | float,
    mask: Tensor | None,
    visible: Tensor | None,
    is_causal: bool,
    dropout_p: float,
    scale: float | None,
) -> Tensor:
    """Attend where every query has a softmax of its own: Σ_j A_ij exp V_jd / Z_id with Z_id = Σ_{l visible} exp V_ld.

    Z is a number per query and coordinate, so that it leaves the sum, and one attention over [keep·V, gain·exp V] is
    all that is needed. The values are first shifted by the middle of their range, which cancels.
    """
    shifted = _shifted(value)
    exponentials = shifted.exp()
    if is_causal:
        log_sums = shifted.logcumsumexp(-2)[..., : query.shape[-2], :]
        if query.shape[-2] > value.shape[-2]:
            raise StructuredInitError(
                f"a causal softmax over {value.shape[-2]} tokens cannot serve {query.shape[-2]} queries: "
                "give a mask instead"
            )
        per_sum = (-log_sums).exp()
    else:
        sums = visible.to(shifted.dtype) @ exponentials
        per_sum = sums.clamp_min(torch.finfo(sums.dtype).tiny).reciprocal()  # a query that sees nothing gets 0
    # The query's own precision, unless the exponentials do not fit into it.
    dtype = shifted.dtype if torch.float64 == shifted.dtype or query.dtype == torch.float16 else query.dtype
    parts = [gain * exponentials] if _is_zero(keep) else [keep * value, gain * exponentials]
    with torch.autocast(query.device.type, enabled=False):  # float16 has no room for the exponentials
        both = torch.cat([part.to(dtype) for part in parts], dim=-1)
        mask = mask.to(dtype) if mask is not None and mask.is_floating_point() else mask
        given = (query.to(dtype), key.to(dtype), both, mask, dropout_p, is_causal)
        attended = F.scaled_dot_product_attention(*given, scale=scale)
    *kept, softmaxed = attended.split(value.shape[-1], dim=-1)
    output = softmaxed * per_sum
    return (kept[0] + output if kept else output).to(query.dtype)


def _shifted(value: Tensor) -> Tensor:
    """Return V minus the middle of each coordinate's range, in a precision that holds the exponentials."""
    shifted = value.to(torch.promote_types(value.dtype, torch.float32))
    lowest, highest = shifted.detach().aminmax(dim=-2, keepdim=True)
    half = float((highest - lowest).max()) / 2
    if not half <= HALF_RANGE[shifted.dtype]:  # a NaN goes on as a NaN
        shifted = shifted.double()
        if half > HALF_RANGE[torch.float64]:
            raise StructuredInitError(
                f"values of one coordinate lie {2 * half:.0f} apart: the softmax over the tokens that each query sees "
                f"holds up to {2 * HALF_RANGE[torch.float64]:.0f}"
            )
    return shifted - ((lowest + highest) / 2).to(shifted.dtype)


def _repeated(
    heads: int, key: Tensor, value: Tensor, keep: Tensor | float, gain: Tensor | float
) -> tuple[Tensor, Tensor, Tensor | float, Tensor | float]:
    """Give every query head a key, a value and factors of its own."""
    group = heads // value.shape[1]
    if group == 1:
        return key, value, keep, gain
    repeated = [tensor.repeat_interleave(group, dim=1) for tensor in (key, value)]
    factors = [
        factor.repeat_interleave(group, dim=0) if isinstance(factor, Tensor) and factor.shape[0] > 1 else factor
        for factor in (keep, gain)
    ]
    return repeated[0], repeated[1], factors[0], factors[1]


def _is_zero(factor: Tensor | float) -> bool:
    return isinstance(factor, float) and factor == 0.0


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
    float16 round this away, of which both modes warn, except under ``torch.compile``.

    Args:
        mode: one of these.
        scale: factor on softmaxᵀ(V), whose mean over M tokens is 1/M.
        alpha: α at the start, in [0, 1].
        learnable: α is a parameter, which may leave [0, 1]; else a buffer, which ``AlphaScheduleCallback`` may move.
        num_heads: how many α there are: the value heads for one each, 1 for a shared one.

    Attributes:
        alpha: (num_heads,); ``None`` for ``replace``, which has none.

    Raises:
        StructuredInitError: an unknown mode, α outside of [0, 1], an α for ``replace``.

    Source: anhinga/JuliaCon2021-poster, "request for plot"; the grid V ± α·softmaxᵀ(V) was suggested in its discussion.
    """

    alpha: Tensor | None

    def __init__(
        self,
        mode: Mode = "replace",
        scale: float = 1.0,
        alpha: float = 1.0,
        learnable: bool = False,
        num_heads: int = 1,
    ) -> None:
        if mode not in MODES:
            raise StructuredInitError(f"unknown mode '{mode}' of TokenSoftmaxValue: {nearest(str(mode), MODES)}")
        check_alpha(alpha)
        if mode == "replace" and (learnable or alpha != 1):
            raise StructuredInitError("mode 'replace' has no alpha: use 'remix', which is the same at alpha = 1")
        super().__init__()
        self.mode, self.scale, self.learnable = mode, float(scale), learnable
        start = torch.full((num_heads,), float(alpha))
        if mode == "replace":
            self.alpha = None
        elif learnable:
            self.alpha = nn.Parameter(start)
        else:
            self.register_buffer("alpha", start)

    def forward(
        self, values: Float[Tensor, "*batch tokens value_dim"], visible: Bool[Tensor, ...] | None = None
    ) -> Float[Tensor, "*batch tokens value_dim"]:
        """Mix values (B, tokens, D) or (B, H, tokens, d); ``visible`` (…, tokens) is true for tokens that count."""
        self._warn_of_rounding(values)
        return mix_values(values, *self.factors(), visible).to(values.dtype)

    def attend(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch kv_heads tokens head_dim"],
        value: Float[Tensor, "batch kv_heads tokens value_dim"],
        mask: Tensor | None = None,
        is_causal: bool = False,
        dropout_p: float = 0.0,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Float[Tensor, "batch heads queries value_dim"]:
        """Attend to the mixed values; the softmax of each query runs over the tokens that it may see.

        The arguments are those of :func:`~structured_init.layers.token_softmax.token_softmax_attention`.
        """
        self._warn_of_rounding(value)
        return token_softmax_attention(
            query, key, value, *self.factors(), mask, is_causal, dropout_p, scale, enable_gqa
        )

    def factors(self) -> tuple[Tensor | float, Tensor | float]:
        """Return the factors on V and on softmaxᵀ(V), numbers or (num_heads, 1, 1)."""
        if self.alpha is None:
            return 0.0, self.scale
        alpha = self.alpha.view(-1, 1, 1)
        if self.mode == "remix":
            return 1 - alpha, alpha * self.scale
        return 1.0, alpha * (self.scale if self.mode == "add" else -self.scale)

    def _warn_of_rounding(self, values: Tensor) -> None:
        if self.mode not in ("replace", "remix") or torch.compiler.is_compiling():
            return
        device = values.device.type
        autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else values.dtype
        if dtype in (torch.bfloat16, torch.float16):
            name = str(dtype).removeprefix("torch.")
            warnings.warn(
                f"softmaxᵀ(V) in {name}: while values are small and α is near 1, it comes out close to "
                f"1/{values.shape[-2]} everywhere, and what differs is rounded away; precision 32-true keeps it",
                stacklevel=2,
            )

    @torch.no_grad()
    def set_alpha(self, alpha: float) -> None:
        """Set α of every head, in [0, 1].

        Raises:
            StructuredInitError: it is learned, there is none, or it is out of its range.
        """
        check_alpha(alpha)
        if self.alpha is None or self.learnable:
            why = "is learned" if self.learnable else "does not exist in mode 'replace'"
            raise StructuredInitError(f"alpha of TokenSoftmaxValue {why}: it cannot be set")
        self.alpha.fill_(alpha)

    def extra_repr(self) -> str:
        return f"mode={self.mode}, scale={self.scale:g}, learnable={self.learnable}"


def check_alpha(alpha: float) -> None:
    """Refuse an α outside of [0, 1]."""
    if not 0 <= alpha <= 1:
        raise StructuredInitError(f"alpha must be in [0, 1], not {alpha}")

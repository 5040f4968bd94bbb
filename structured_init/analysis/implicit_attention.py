"""The attention that a selective state-space layer computes without forming it: the matrix that its scan applies.

Letters: B batch, L tokens, H heads (in Mamba-1, channels), G groups, N states.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from structured_init.analysis.capture import register_capture
from structured_init.hosts.registry import class_path
from structured_init.hosts.state_space import STATE_SPACE, WAY_OUT, Selection
from structured_init.util.errors import StructuredInitError

CHANNEL_GROUPS = 8  # Mamba-1 has a matrix per channel, thousands in a layer: neighbours are averaged


def scan_matrix(
    step: Float[Tensor, "B L H"],
    A: Float[Tensor, "H decays"],
    B: Float[Tensor, "B L G N"],
    C: Float[Tensor, "B L G N"],
) -> Float[Tensor, "B H L L"]:
    """Return M with y_i = Σ_j M_ij x_j for every head's scan, without the skip D (2403.01590, eq. 11; 2405.21060, §3).

    M_ij = Σ_n C_in exp(A_n (Δ_{j+1} + … + Δ_i)) B_jn Δ_j for j ≤ i, and 0 above the diagonal.

    Args:
        step: Δ, behind its softplus.
        A: negative decay rates, one per state, or one per head.
        B: input projections; heads of a group share them.
        C: output projections.
    """
    heads, tokens = step.shape[2], step.shape[1]
    B, C = (each.movedim(2, 1).repeat_interleave(heads // each.shape[2], dim=1) for each in (B, C))
    elapsed = step.double().cumsum(1).movedim(2, 1)  # differences of running sums cancel
    future = torch.ones(tokens, tokens, dtype=torch.bool, device=step.device).triu(1)
    elapsed = (elapsed[..., :, None] - elapsed[..., None, :]).to(A.dtype).masked_fill(future, 0)
    if A.shape[1] == 1:
        matrix = (C @ B.mT) * (elapsed * A[:, :, None]).exp()
    else:
        states = zip(A.unbind(1), C.unbind(-1), B.unbind(-1), strict=True)
        matrix = torch.zeros_like(elapsed)
        for rate, outward, inward in states:  # one at a time: N times less memory
            matrix += (elapsed * rate[:, None, None]).exp() * outward[..., :, None] * inward[..., None, :]
    return matrix.masked_fill(future, 0) * step.movedim(2, 1)[..., None, :]


def implicit_attention(
    module: nn.Module, hidden: Float[Tensor, "B L D"], mask: Tensor | None = None
) -> tuple[Float[Tensor, "B H L L"], Selection]:
    """Return the matrix of every head of a state-space layer, and what its scan is given.

    Args:
        module: a layer of a known class, in Mamba-1 with few channels: it has a matrix for each.
        hidden: what the layer takes.
        mask: (B, L), 0 where a token is padding.

    Raises:
        StructuredInitError: the class is not known, or does not report the inputs of its scan.
    """
    selection, A = _selection(module, hidden, mask)
    return scan_matrix(selection.step, A, selection.B, selection.C), selection


def implicit_maps(
    module: nn.Module, hidden: Float[Tensor, "B L D"], mask: Tensor | None = None, groups: int = CHANNEL_GROUPS
) -> Float[Tensor, "B maps L L"]:
    """Return what stands beside attention maps: the moduli of a layer's matrices, every row summing to one.

    Of Mamba-2 one map per head. Of Mamba-1, whose channels share B and C, the matrices of neighbouring channels are
    averaged first, so that there are ``groups`` maps.
    """
    selection, A = _selection(module, hidden, mask)
    heads, per_channel = A.shape[0], A.shape[1] > 1
    parts = torch.arange(heads).tensor_split(min(groups, heads) if per_channel else heads)
    maps = []
    for part in parts:
        total = 0
        for head in part.tolist():
            group = head * selection.B.shape[2] // heads
            B, C = selection.B[:, :, group, None], selection.C[:, :, group, None]
            total = total + scan_matrix(selection.step[..., head, None], A[head, None], B, C)[:, 0]
        maps.append(total.abs())
    stacked = torch.stack(maps, dim=1)
    return stacked / stacked.sum(-1, keepdim=True).clamp(min=torch.finfo(stacked.dtype).tiny)


def _selection(module: nn.Module, hidden: Tensor, mask: Tensor | None) -> tuple[Selection, Tensor]:
    """Return what the scan is given, in float32 or better, and A (H, N) or (H, 1)."""
    describe = STATE_SPACE.find(module)
    layout = describe and describe(module)
    if not layout or not layout.select:
        raise StructuredInitError(
            f"implicit attention: {class_path(type(module))} does not report the inputs of its scan: {WAY_OUT}, "
            "with `select` in its layout"
        )
    if mask is None:
        mask = hidden.new_ones(hidden.shape[:2])
    parts = layout.select((hidden * mask[..., None]).to(layout.B.weight.dtype))
    # Hosts mask again behind the convolution.
    parts = parts._replace(values=parts.values * mask[..., None, None], B=parts.B * mask[..., None, None])
    A = -layout.A_log.detach().exp()
    dtype = torch.promote_types(torch.promote_types(A.dtype, parts.step.dtype), torch.float32)
    return Selection(*(part.detach().to(dtype) for part in parts)), A.to(dtype).reshape(A.shape[0], -1)


@register_capture("transformers.models.mamba.modeling_mamba.MambaMixer")
@register_capture("transformers.models.mamba2.modeling_mamba2.Mamba2Mixer")
@register_capture("mamba_ssm.modules.mamba_simple.Mamba")
@register_capture("mamba_ssm.modules.mamba2.Mamba2")
def _adapter(module: nn.Module, args: tuple, kwargs: dict, output: object) -> Tensor:
    hidden = args[0] if args else kwargs.get("hidden_states", kwargs.get("u"))
    return implicit_maps(module, hidden, kwargs.get("attention_mask"))

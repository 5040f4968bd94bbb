"""What a state-space layer's weights say about its memory.

Letters: W width, N state_dim, H heads, G groups. Row vectors: the match of tokens i and j is u_i W_C W_Bᵀ u_jᵀ.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from structured_init.sites.state_space import StateSpaceSite
from structured_init.ssm.output_scale import ScanScale


def half_life(A_log: Float[Tensor, "heads decays"], step: Float[Tensor, " heads"]) -> Float[Tensor, "heads decays"]:
    """Return the tokens after which a state is half of what it was: ln 2 / (Δ |A|), with A = −exp(A_log)."""
    return math.log(2) / (step.double()[:, None] * A_log.double().exp())


def match_distance(
    B: Float[Tensor, "groups width state_dim"], C: Float[Tensor, "groups width state_dim"]
) -> Float[Tensor, " groups"]:
    """Return ‖W_C W_Bᵀ − I‖ (Frobenius) per group, without forming the W × W product.

    ‖M − I‖² = tr(W_Cᵀ W_C W_Bᵀ W_B) − 2 tr(W_Cᵀ W_B) + W. The product has rank N or less, so the distance is at least
    √(W − N).
    """
    B, C = B.double(), C.double()
    squared = ((C.mT @ C) * (B.mT @ B)).sum((-2, -1)) - 2 * (C * B).sum((-2, -1)) + B.shape[-2]
    return squared.clamp(min=0).sqrt()


def measures(site: StateSpaceSite, scale: ScanScale | None) -> dict[str, float]:
    """Return what the report says of a layer, before and after an initialization.

    Args:
        site: the layer.
        scale: of its scan's output; ``None`` where it is not known.

    Returns:
        Half-life in tokens (5th percentile, median and 95th over heads and states), Δ (likewise, over heads) where the
        input moves it nowhere, the largest modulus in W_Δ, 0 where no input can move it, ‖W_C W_Bᵀ − I‖ (mean over
        groups), how far the short convolution is from the identity, as root mean square, and how large the scan's
        input and output are on random tokens.
    """
    taps = site.conv_weight.double()
    taps[:, -1] -= 1
    return {
        **_spread("half-life (tokens)", half_life(site.A_log, site.step)),
        **_spread("Δ", site.step),
        "largest W_Δ": site.dt_weight.abs().max().item(),
        "‖CᵀB − I‖": match_distance(site.B, site.C).mean().item(),
        "convolution − identity (rms)": taps.square().mean().sqrt().item(),
        **_scale(scale),
    }


def _scale(scale: ScanScale | None) -> dict[str, float]:
    if scale is None:
        return {}
    return {
        "scan input (rms)": scale.input,
        "scan output at token 64 (rms)": scale.early,
        "scan output at token 256 (rms)": scale.late,
    }


def _spread(name: str, values: Tensor) -> dict[str, float]:
    low, middle, high = torch.quantile(
        values.double().flatten(), values.new_tensor([0.05, 0.5, 0.95]).double()
    ).tolist()
    return {f"{name}, 5 %": low, f"{name}, median": middle, f"{name}, 95 %": high}

"""The solver of 2505.19985: queries and keys from a truncated pseudo-inverse, in closed form.

Letters: H heads, N tokens, D embed_dim, k head_dim.
"""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

from structured_init.attention.impulse.basis import Basis, Factors, factor

IMPULSE = 1000.0  # weight of the impulse in the linear target
NOISE_STD, NOISE_CUT = 0.6, 2.0  # of the truncated normal noise, in absolute units
NUMERICAL_RANK = 1e-12


def noisy_target(
    impulses: Float64[Tensor, "heads tokens tokens"], noise: float, *, generator: torch.Generator
) -> Float64[Tensor, "heads tokens tokens"]:
    """Return 1000·impulse + noise·Z off the impulse, Z normal with standard deviation 0.6, cut at ±2.

    The factor 1000 has no effect of its own, since the result is normalized; the ratio to ``noise`` has.

    Source: 2505.19985, code: ``W = 1000*H + 3.0*tmp*(H==0)``.
    """
    draw = torch.empty_like(impulses)
    torch.nn.init.trunc_normal_(draw, std=NOISE_STD, a=-NOISE_CUT, b=NOISE_CUT, generator=generator)
    return IMPULSE * impulses + noise * draw * (impulses == 0)


def closed_form(
    basis: Basis, targets: Float64[Tensor, "heads tokens tokens"], head_dim: int, *, norm: float
) -> tuple[Tensor, Tensor]:
    """Return W_q and W_k (H, D, k), each of Frobenius norm ``norm``, from A = P⁺ W P⁺ᵀ = W_q W_kᵀ.

    P⁺ = G⁺ Pᵀ with G = Pᵀ P inverted on its k largest singular values, so A has rank k and its factors lose nothing.

    Args:
        basis: of P, uncut.
        targets: W of each head.
        head_dim: k.
        norm: 7 as published.

    Source: 2505.19985, code, steps 3 to 5 of the description in ``docs/impulse.md``. We invert numbers that are not
    numerically zero only, which differs where P has a rank below k.
    """
    basis = basis.cut(cutoff=NUMERICAL_RANK, rank=head_dim)
    factors: list[Factors] = [factor(basis, basis.left.mT @ target @ basis.left, head_dim) for target in targets]
    query = torch.stack([each.query for each in factors])
    key = torch.stack([each.key for each in factors])
    return norm * query / _frobenius(query), norm * key / _frobenius(key)


def _frobenius(weight: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(weight, keepdim=True)

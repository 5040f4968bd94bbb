"""The solver of 2505.19985: queries and keys from a truncated pseudo-inverse, in closed form.

Letters: H heads, Hkv key heads, N tokens, D embed_dim, k head_dim.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from structured_init.attention.positions import Positions
from structured_init.impulse.solver import Basis, Factors, ImpulseSolver, Task, factor, impulse_maps
from structured_init.util.arguments import check_not_negative, check_positive

IMPULSE = 1000.0  # weight of the impulse in the linear target
NOISE_STD, NOISE_CUT = 0.6, 2.0  # of the truncated normal noise, in absolute units
NUMERICAL_RANK = 1e-12


def noisy_target(
    impulse: Float64[Tensor, "*heads tokens tokens"], noise: float, *, generator: torch.Generator
) -> Float64[Tensor, "*heads tokens tokens"]:
    """Return 1000·impulse + noise·Z off the impulse, Z normal with standard deviation 0.6, cut at ±2.

    The factor 1000 has no effect of its own, since the result is normalized; the ratio to ``noise`` has.

    Source: 2505.19985, code: ``W = 1000*H + 3.0*tmp*(H==0)``.
    """
    target = torch.empty_like(impulse)
    torch.nn.init.trunc_normal_(target, std=NOISE_STD, a=-NOISE_CUT, b=NOISE_CUT, generator=generator)
    return target.mul_(noise).masked_fill_(impulse != 0, 0.0).add_(impulse, alpha=IMPULSE)


def closed_form(
    basis: Basis, targets: Iterable[Float64[Tensor, "tokens tokens"]], head_dim: int, *, norm: float, group: int = 1
) -> tuple[Tensor, Tensor]:
    """Return W_q (H, D, k) and W_k (Hkv, D, k), each of Frobenius norm ``norm``, from A = P⁺ W P⁺ᵀ = W_q W_kᵀ.

    P⁺ = G⁺ Pᵀ with G = Pᵀ P inverted on its k largest singular values, so A has rank k and its factors lose nothing.

    Nor do they where heads share a key (ours; the source has no grouped queries): all A begin and end in the same k
    directions. Since no longer each A has the W_k that suits it best, W_q is made longer than ``norm``, by a tenth or
    so, such that every product W_q W_kᵀ is the one with a key of its own.

    Source: 2505.19985 and its code, see ``docs/impulse.md``; ``norm`` is 7 there. We invert
    numbers that are not numerically zero only, which differs where P has a rank below k.
    """
    basis = basis.cut(cutoff=NUMERICAL_RANK, rank=head_dim)
    cores = torch.stack([basis.left.mT @ target @ basis.left for target in targets])
    factors: list[Factors] = [factor(basis, shared, head_dim) for shared in cores.split(group)]
    query = basis.right @ torch.cat([each.query for each in factors])
    key = basis.right @ torch.stack([each.key for each in factors])
    for weight in (query, key):
        weight.mul_(norm / torch.linalg.matrix_norm(weight, keepdim=True))
    if group > 1:
        # W_q = A √σ and W_k = B √σ have ‖W_q‖ ‖W_k‖ = Σσ; any other factors of the same product have more.
        shared = key.repeat_interleave(group, dim=0)
        middle = torch.linalg.qr(query).R @ torch.linalg.qr(shared).R.mT  # k × k, of the same singular values
        query.mul_(norm**2 / torch.linalg.matrix_norm(middle, ord="nuc", keepdim=True))
    return query, key


@dataclass(eq=False)
class SvdSolver(ImpulseSolver):
    """Truncated pseudo-inverse and Frobenius normalization (2505.19985). See :func:`closed_form`.

    Args:
        noise: strength of the noise beside an impulse of 1000.
        norm: Frobenius norm of each head's queries, and of its keys.
        gain: of its own positions, N(0, (0.02·gain)²).
    """

    offsets = "fixed"

    noise: float = 3.0
    norm: float = 7.0
    gain: float = 18.0

    def __post_init__(self) -> None:
        check_not_negative("SvdSolver", noise=self.noise)
        check_positive("SvdSolver", norm=self.norm, gain=self.gain)

    def own_positions(self) -> Positions:
        return Positions("gaussian", gain=self.gain)

    def solve(self, task: Task) -> tuple[Tensor, Tensor]:
        generator = task.draw("svd")
        impulses = (impulse_maps(offset[None], task.grid, border=task.border)[0] for offset in task.offsets)
        targets = (noisy_target(impulse, self.noise, generator=generator) for impulse in impulses)
        basis = task.known_positions().basis
        return closed_form(basis, targets, task.site.head_dim, norm=self.norm, group=task.group)

"""How much of the attention that a network starts with is left after training: pure functions of maps before and after.

Letters: B batch, H heads, N tokens, P patches. Both maps are of the same samples, in the same order. No paper measures
this; the definitions are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from structured_init.analysis.statistics import Grid, Maps, PerHead, impulse_mass, patch_maps
from structured_init.errors import StructuredInitError

ROUNDING = 1e-6  # of float32 maps, relative; less than this beyond uniform is no pattern


class Products(NamedTuple):
    """Sums over samples, queries and keys of products of what two maps have beyond uniform attention, per head.

    Attributes:
        between: Σ (A − U)(A' − U).
        before: Σ (A − U)².
        after: Σ (A' − U)².
    """

    between: PerHead
    before: PerHead
    after: PerHead

    def cosine(self) -> PerHead:
        """Return the cosine; nan for a head that is uniform before or after."""
        return (self.between / (self.before.sqrt() * self.after.sqrt())).clamp(-1, 1)


def structure_left(before: Maps, after: Maps, prefix_tokens: int = 0, causal: bool = False) -> PerHead:
    """Return the cosine between maps before and after, less the uniform attention U that both have in common.

    Σ (A − U)(A' − U) / √(Σ (A − U)² · Σ (A' − U)²), sums over samples, queries and keys, with U = 1/P, or 1/(i+1) in
    row i where ``causal``. One where the pattern is the same, sharper or softer as it may be; zero where nothing of it
    is left; below zero where the network looks away from where it looked. nan for a head without any pattern.

    Args:
        before: attention maps at the start.
        after: maps of the same samples after training.
        prefix_tokens: number of leading tokens that are no patches; they are left out.
        causal: whether a token may only look at itself and what is before it.

    Raises:
        StructuredInitError: the maps are not of the same samples, heads and tokens.
    """
    return structure_products(before, after, prefix_tokens, causal).cosine()


def structure_products(before: Maps, after: Maps, prefix_tokens: int = 0, causal: bool = False) -> Products:
    """Return the three sums that ``structure_left`` is made of, in float64; they add up over batches."""
    if before.shape != after.shape:
        raise StructuredInitError(
            f"maps before and after must come from the same samples, got shapes {tuple(before.shape)} and "
            f"{tuple(after.shape)}"
        )
    first, second = (patch_maps(maps.double(), prefix_tokens) for maps in (before, after))
    uniform = torch.ones_like(first[0, 0])
    uniform = uniform.tril() if causal else uniform
    uniform = uniform / uniform.sum(dim=-1, keepdim=True)
    first, second = (
        torch.where((maps - uniform).abs() <= ROUNDING * uniform, 0, maps - uniform) for maps in (first, second)
    )
    return Products(*((a * b).sum(dim=(0, 2, 3)) for a, b in ((first, second), (first, first), (second, second))))


def impulse_mass_change(
    before: Maps, after: Maps, offsets: Int[Tensor, "heads 2"] | Sequence, grid: Grid, prefix_tokens: int = 0
) -> PerHead:
    """Return how much attention a head has gained (lost, below zero) at the offset that it started with.

    ``impulse_mass`` after less that before, from −1 to 1. Where training moves an impulse elsewhere, it is lost here.

    Args:
        before: attention maps at the start.
        after: maps after training.
        offsets: the initialization's own (rows down, columns right) per head, such as ``best_offset(before, grid)``.
        grid: rows and columns of patches.
        prefix_tokens: number of leading tokens that are no patches.
    """
    offsets = torch.as_tensor(offsets, device="cpu")
    return impulse_mass(after, offsets, grid, prefix_tokens) - impulse_mass(before, offsets, grid, prefix_tokens)


def is_causal(maps: Float[Tensor, "batch heads tokens tokens"]) -> bool:
    """Tell whether no token looks at a later one."""
    return maps.shape[-1] > 1 and not bool(maps.triu(1).any())

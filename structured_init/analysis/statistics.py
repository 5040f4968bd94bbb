"""What attention maps look like, as numbers per head: pure functions of the maps.

Letters: B batch, H heads, N tokens, P = Gy·Gx patches, f window side. Patches are numbered row by row, after
``prefix_tokens`` class or register tokens. A sequence is a grid of one row. What concerns places is computed on
patches alone, with rows renormalised to one after the prefix is removed; every function averages over the batch.
A token of a sample that no query of any head looks at is padding, which attention hides: it counts neither as a query
nor as a key.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from structured_init.hosts.watched import unpadded
from structured_init.util.arguments import check_grid, check_whole
from structured_init.util.errors import StructuredInitError

Grid = tuple[int, int] | list[int]
Maps = Float[Tensor, "batch heads tokens tokens"]
AnyMaps = Float[Tensor, "batch heads queries keys"]  # of cross-attention too
MeanMaps = Float[Tensor, "heads queries keys"]
PerHead = Float[Tensor, "heads"]
TINY = torch.finfo(torch.float32).tiny


def singular_values(matrices: Float[Tensor, "*batch rows columns"]) -> Float[Tensor, "*batch values"]:
    """Return the singular values, the largest first; nan for a matrix that is not finite, where LAPACK would raise."""
    finite = matrices.isfinite().all(-1).all(-1)
    values = torch.linalg.svdvals(matrices.masked_fill(~finite[..., None, None], 0))
    return values.masked_fill(~finite[..., None], math.nan)


def patch_maps(maps: AnyMaps, prefix_tokens: int = 0) -> Float[Tensor, "batch heads rows columns"]:
    """Remove the rows and columns of class and register tokens, and scale the remaining rows to sum to one again.

    Args:
        maps: attention maps, rows summing to one.
        prefix_tokens: number of leading tokens that are no patches.
    """
    check_whole("attention maps", 0, prefix_tokens=prefix_tokens)
    maps = shares(maps)[..., prefix_tokens:, prefix_tokens:]
    return maps / maps.sum(dim=-1, keepdim=True).clamp_min(TINY)


def mean_distance(maps: Maps, grid: Grid, prefix_tokens: int = 0) -> PerHead:
    """Return the mean attention distance: mean over queries i of Σ_j A_ij · |place_i − place_j|.

    Dosovitskiy et al. 2021, figure 7, whose public code drops the class token without giving its share back. In ConViT
    (d'Ascoli et al. 2021) the same number is called non-locality. The distance is in patches.
    """
    patches = patch_maps(maps, prefix_tokens)
    distances = grid_distances(checked_grid(patches, grid)).to(patches)
    return _mean((patches * distances).sum(dim=-1), patches)


def entropy(maps: AnyMaps, normalised: bool = False) -> PerHead:
    """Return the mean entropy of a row, −Σ_j A_ij ln A_ij, in nats, over all tokens.

    Args:
        maps: attention maps.
        normalised: divide by ln N, N without padding, so that uniform attention has entropy one.
    """
    of_rows = shares(maps).clamp(min=0)
    rows = -torch.special.xlogy(of_rows, of_rows).sum(dim=-1)
    if normalised:
        rows = rows / unpadded(maps).sum(dim=-1).clamp_min(2).to(rows).log()[:, None, None]
    return _mean(rows, maps)


def diagonal_mass(maps: Maps, prefix_tokens: int = 0) -> PerHead:
    """Return the mean attention of a patch to itself, mean_i A_ii."""
    patches = square(patch_maps(maps, prefix_tokens))
    return _mean(patches.diagonal(dim1=-2, dim2=-1), patches)


def diagonality(maps: Maps, grid: Grid, prefix_tokens: int = 0) -> PerHead:
    """Return mean_i (1 − Σ_j A_ij d_ij / max_j d_ij): one on the diagonal, zero when all looks at the farthest.

    Zhang et al. 2020 (arXiv 2011.04906) with d_ij = |i − j|, which is this on a grid of one row; on images d_ij is
    the distance on the grid, since numbering patches row by row would tear neighbours apart.
    """
    patches = patch_maps(maps, prefix_tokens)
    distances = grid_distances(checked_grid(patches, grid)).to(patches)
    farthest = (distances * unpadded(patches)[:, None, None]).amax(dim=-1, keepdim=True)
    return _mean(1 - (patches * (distances / farthest.clamp_min(TINY))).sum(dim=-1), patches)


def far_mass(maps: Maps, grid: Grid, prefix_tokens: int = 0, radius: int | float = 3) -> PerHead:
    """Return the share of a patch's attention on patches farther away than a radius, Euclidean, in patches. Ours.

    3 reaches just beyond a 5 × 5 window. Attention that does not care about places has that of uniform maps.
    """
    patches = patch_maps(maps, prefix_tokens)
    far = grid_distances(checked_grid(patches, grid)).to(patches.device) > radius
    return _mean((patches * far).sum(dim=-1), patches)


def impulse_mass(maps: Maps, offsets: Int[Tensor, "heads 2"], grid: Grid, prefix_tokens: int = 0) -> PerHead:
    """Return the mean attention on the patch at a head's offset, over queries whose target lies inside the grid.

    It is nan for a head without such queries.

    Args:
        maps: attention maps.
        offsets: (rows down, columns right) from query to target, per head.
        grid: rows and columns of patches.
        prefix_tokens: number of leading tokens that are no patches.
    """
    patches = patch_maps(maps, prefix_tokens)
    inside = pairs_apart(patches, offsets, grid)
    return (patches * inside).sum(dim=(0, 2, 3)) / inside.sum(dim=(0, 2, 3))


def argmax_accuracy(maps: Maps, offsets: Int[Tensor, "heads 2"], grid: Grid, prefix_tokens: int = 0) -> PerHead:
    """Return how often a query looks most at the patch at its head's offset; arguments as in ``impulse_mass``."""
    patches = patch_maps(maps, prefix_tokens)
    inside = pairs_apart(patches, offsets, grid)
    hits = torch.nn.functional.one_hot(patches.argmax(dim=-1), patches.shape[-1]).bool() & inside
    accuracy = hits.sum(dim=(0, 2, 3)) / inside.sum(dim=(0, 2, 3))
    return accuracy.where(patches.isfinite().all(-1).all(-1).all(0), math.nan)  # argmax would take the first nan


def best_offset(maps: Maps, grid: Grid, prefix_tokens: int = 0, window: int = 3) -> Int[Tensor, "heads 2"]:
    """Return the offset with the largest impulse mass in a window × window neighbourhood (window odd), per head."""
    if window % 2 == 0:
        raise StructuredInitError(f"window must be an odd number, got {window!r}")
    rows, columns = grid
    reach_y, reach_x = min(window // 2, rows - 1), min(window // 2, columns - 1)
    near = offset_profile(maps, grid, prefix_tokens)  # the impulse mass of every offset
    near = near[:, rows - 1 - reach_y : rows + reach_y, columns - 1 - reach_x : columns + reach_x]
    best = near.flatten(1).argmax(dim=1).cpu()
    across = 2 * reach_x + 1
    return torch.stack([best // across - reach_y, best % across - reach_x], dim=1)


def effective_rank(maps: AnyMaps) -> PerHead:
    """Return exp(H(σ / Σσ)) of the singular values σ of each map, or nan. Roy and Vetterli 2007."""
    sigma = singular_values(checked_maps(maps).double() * seen_pairs(maps))
    share = sigma / sigma.sum(dim=-1, keepdim=True).clamp_min(TINY)
    return torch.special.entr(share).sum(dim=-1).exp().mean(dim=0).to(maps.dtype)


def offset_profile(maps: Maps, grid: Grid, prefix_tokens: int = 0) -> Float[Tensor, "heads offset_rows offset_columns"]:
    """Average attention over all pairs of patches at the same offset: the convolution that a head resembles.

    Returns:
        (H, 2Gy − 1, 2Gx − 1); entry (dy + Gy − 1, dx + Gx − 1) belongs to a target dy rows below and dx columns
        right of its query.
    """
    patches, seen = _mean_patches(maps, prefix_tokens)
    rows, columns = checked_grid(patches, grid)
    index, bins = _offset_index(rows, columns).to(patches.device), (2 * rows - 1) * (2 * columns - 1)
    total = patches.new_zeros(patches.shape[0], bins).index_add_(1, index.flatten(), patches.flatten(1))
    count = torch.bincount(index[seen], minlength=bins)
    return (total / count.clamp_min(1)).unflatten(1, (2 * rows - 1, 2 * columns - 1))


def profile_energy(maps: Maps, grid: Grid, prefix_tokens: int = 0) -> PerHead:
    """Return the share of Σ A² that the offset profile explains: one for a map that is a convolution."""
    patches, seen = _mean_patches(maps, prefix_tokens)
    index = _offset_index(*checked_grid(patches, grid)).to(patches.device)
    explained = offset_profile(maps, grid, prefix_tokens).flatten(1)[:, index] * seen
    return explained.square().sum(dim=(-2, -1)) / patches.square().sum(dim=(-2, -1)).clamp_min(TINY)


def _mean_patches(maps: Maps, prefix_tokens: int) -> tuple[MeanMaps, Bool[Tensor, "queries keys"]]:
    """Return the mean map of patches, and the pairs of them that are no padding in any sample."""
    patches = patch_maps(maps, prefix_tokens)
    return mean_map(patches), seen_pairs(patches).any(dim=0)[0]


def mean_map(maps: AnyMaps) -> MeanMaps:
    """Average maps over the samples in which a pair is no padding; zero for a pair that is padding in all."""
    pairs = seen_pairs(maps)
    return (maps * pairs).sum(dim=0) / pairs.sum(dim=0).clamp_min(1)


def seen_pairs(maps: AnyMaps) -> Bool[Tensor, "batch 1 queries keys"]:
    """Tell which pairs are without padding; of other tokens than the keys, every query is."""
    keys = unpadded(checked_maps(maps))
    queries = keys if maps.shape[-1] == maps.shape[-2] else keys.new_ones(len(keys), maps.shape[-2])
    return queries[:, None, :, None] & keys[:, None, None, :]


def _mean(rows: Float[Tensor, "batch heads queries"], maps: AnyMaps) -> PerHead:
    """Average over samples and the queries that are no padding."""
    counted = seen_pairs(maps).any(dim=-1)
    return rows.where(counted, 0).sum(dim=(0, 2)) / counted.sum().clamp_min(1)


def grid_distances(grid: Grid) -> Float[Tensor, "patches patches"]:
    """Return the Euclidean distance, in patches, between any two patches of a grid."""
    check_grid("distances", grid)
    places = torch.cartesian_prod(*(torch.arange(float(size), device="cpu") for size in grid))
    # Exactly: cdist's default goes through a matrix product on large grids and is not exactly zero on the diagonal.
    return torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist")


def _offset_index(rows: int, columns: int) -> Int[Tensor, "patches patches"]:
    """Number the offset of every pair of patches, as in ``offset_profile``."""
    places = torch.cartesian_prod(torch.arange(rows, device="cpu"), torch.arange(columns, device="cpu"))
    offsets = places[None, :, :] - places[:, None, :]
    return (offsets[..., 0] + rows - 1) * (2 * columns - 1) + offsets[..., 1] + columns - 1


def pairs_apart(
    maps: Maps, offsets: Int[Tensor, "heads 2"] | Sequence, grid: Grid
) -> Bool[Tensor, "batch heads queries keys"]:
    """Mark, for each head, the pairs (query, target) that are its offset apart, and no padding."""
    (rows, columns), heads = checked_grid(maps, grid), maps.shape[1]
    offsets = torch.as_tensor(offsets, device="cpu")  # as are the grid's
    if tuple(offsets.shape) != (heads, 2):
        raise StructuredInitError(
            f"offsets have a row (down, right) for each of {heads} heads, got shape {tuple(offsets.shape)}"
        )
    wanted = (offsets[:, 0] + rows - 1) * (2 * columns - 1) + offsets[:, 1] + columns - 1
    reachable = (offsets[:, 0].abs() < rows) & (offsets[:, 1].abs() < columns)
    apart = (_offset_index(rows, columns) == wanted[:, None, None]) & reachable[:, None, None]
    return apart.to(maps.device) & seen_pairs(maps)


def checked_maps(maps: AnyMaps) -> AnyMaps:
    """Return attention maps, (batch, heads, queries, keys); refuse other axes."""
    if maps.ndim != 4:
        raise StructuredInitError(
            f"attention maps are (batch, heads, queries, keys), got shape {tuple(maps.shape)}: add the missing axes"
        )
    return maps


def shares(maps: AnyMaps) -> AnyMaps:
    """Return attention maps, nan in rows with an entry below 0, but for rounding, as where a host mixes its heads."""
    least = -max(torch.finfo(checked_maps(maps).dtype).eps, torch.finfo(torch.float32).eps)  # also of maps made double
    return maps.masked_fill((maps < least).any(dim=-1, keepdim=True), math.nan)


def square(maps: Tensor) -> Tensor:
    """Return maps of tokens that look at each other; refuse those of cross-attention, where no offset is known."""
    if maps.shape[-1] != maps.shape[-2]:
        raise StructuredInitError(
            f"these maps have {maps.shape[-2]:,} queries and {maps.shape[-1]:,} keys, as of cross-attention: between "
            "them no offset or distance is known, only entropy and effective_rank"
        )
    return maps


def checked_grid(patches: Tensor, grid: Grid) -> tuple[int, int]:
    """Return rows and columns of a grid that maps over patches fit; refuse any other."""
    rows, columns = grid
    if rows * columns != square(patches).shape[-1]:
        raise StructuredInitError(
            f"a grid of {rows} × {columns} does not fit attention over {patches.shape[-1]} patches: "
            "give the right grid and prefix_tokens; tokens behind the patches are not supported: put them before these"
        )
    return rows, columns


def is_causal(maps: Float[Tensor, "batch heads tokens tokens"]) -> bool:
    """Tell whether no token looks at a later one."""
    return maps.shape[-1] > 1 and not bool((maps * seen_pairs(maps)).triu(1).any())

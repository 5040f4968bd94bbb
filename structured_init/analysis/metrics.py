"""The statistics of attention and representations as torchmetrics: over many batches and processes, in constant memory.

Letters: B batch, H heads, N tokens, P = Gy·Gx patches, m samples. Every metric is the function of the same idea applied
to all batches at once: batches of unequal size, and processes, count by what they hold. A metric is for one layer.

Arguments: ``num_heads``, H; ``grid``, rows and columns of patches, (1, N) for a sequence; ``prefix_tokens``, the number
of leading tokens that are no patches; and those of ``torchmetrics.Metric``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torchmetrics import Metric

from structured_init.analysis import statistics
from structured_init.analysis.cka import alignment, gram_matrix, hsic1, kernel_matrix
from structured_init.analysis.heads import Marked, Queries, Tokens, at_offset, attention_on, check_shape, prefix_matches
from structured_init.analysis.statistics import Grid, Maps, PerHead, Products, structure_products
from structured_init.errors import StructuredInitError

Offsets = Int[Tensor, "heads 2"] | Sequence[Sequence[int]]


class Sums(Metric):
    """A metric of sums: states that add up over batches and processes."""

    is_differentiable = False
    higher_is_better = None
    full_state_update = False

    def add_sums(self, **shapes: tuple[int, ...]) -> None:
        """Add states of zeros, by name and shape."""
        for name, shape in shapes.items():
            self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")


class Mean(Sums):
    """A total, in whatever shape, and what it is divided by."""

    def __init__(self, *shape: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_sums(total=shape, count=())

    def compute(self) -> Tensor:
        """Return the mean, 0 where nothing counts; nan before anything that counts was seen."""
        return self.total / self.count.where((self.count > 0) | (self.count.sum() == 0), 1)


class MeanPerHead(Mean):
    """The mean of a statistic per head (H,), over all that is seen.

    ``statistic`` takes maps (B, H, N, N) to (H,), a mean of as many as ``weight`` says, per head or of all: batches
    differ in it where sequences differ in length.
    """

    def __init__(
        self, statistic: Callable[[Tensor], Tensor], num_heads: int, prefix_tokens: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(num_heads, **kwargs)
        self.add_sums(count=(num_heads,))
        self.statistic, self.prefix_tokens = statistic, prefix_tokens

    def weight(self, patches: Tensor) -> Tensor | int:
        """Return how many queries are no padding."""
        return statistics.seen_pairs(patches).any(dim=-1).sum()

    def update(self, maps: Maps) -> None:
        """Add the maps of a batch."""
        check_heads(maps, self.total.shape[0])
        weight = torch.as_tensor(self.weight(statistics.patch_maps(maps, self.prefix_tokens)), device=maps.device)
        # Of nothing, a statistic may be nan.
        self.total = self.total + (weight * self.statistic(maps).double()).where(weight > 0, 0)
        self.count = self.count + weight


class MeanMap(Mean):
    """The mean attention map over patches, of which a subclass says something: a mean over samples, (H, P, P)."""

    def __init__(self, num_heads: int, grid: Grid, prefix_tokens: int = 0, **kwargs: Any) -> None:
        patches = grid[0] * grid[1]
        super().__init__(num_heads, patches, patches, **kwargs)
        self.add_sums(count=(patches, patches))  # a pair that is padding in a sample counts for the others
        self.grid, self.prefix_tokens = grid, prefix_tokens

    def update(self, maps: Maps) -> None:
        """Add the maps of a batch."""
        check_heads(maps, self.total.shape[0])
        patches = statistics.patch_maps(maps, self.prefix_tokens)
        statistics.checked_grid(patches, self.grid)
        pairs = statistics.seen_pairs(patches)
        self.total = self.total + (patches.double() * pairs).sum(dim=0)
        self.count = self.count + pairs.sum(dim=0)[0]


def check_heads(maps: Tensor, num_heads: int) -> None:
    """Refuse maps of another number of heads than a metric was made for."""
    if maps.shape[1] != num_heads:
        raise StructuredInitError(f"this metric is for {num_heads} heads, got maps of {maps.shape[1]}")


class MeanAttentionDistance(MeanPerHead):
    """Mean over queries i of Σ_j A_ij · |place_i − place_j|, per head (H,), from 0 to the grid's diagonal.

    Dosovitskiy et al. 2021 (arXiv 2010.11929), figure 7; non-locality in d'Ascoli et al. 2021 (ConViT). See
    ``mean_distance``, also for ``patch_size`` and ``renormalise``.
    """

    def __init__(
        self,
        num_heads: int,
        grid: Grid,
        prefix_tokens: int = 0,
        patch_size: int | float = 1,
        renormalise: bool = True,
        **kwargs: Any,
    ) -> None:
        how = {"patch_size": patch_size, "renormalise": renormalise}
        statistic = partial(statistics.mean_distance, grid=grid, prefix_tokens=prefix_tokens, **how)
        super().__init__(statistic, num_heads, prefix_tokens, **kwargs)


class AttentionEntropy(MeanPerHead):
    """Mean over all tokens i of −Σ_j A_ij ln A_ij in nats, per head (H,), from 0 (an impulse) to ln N (uniform).

    Shannon's entropy of a row, of attention heads in Clark et al. 2019 (arXiv 1906.04341); ``normalised``: divided by
    ln N. See ``entropy``.
    """

    def __init__(self, num_heads: int, normalised: bool = False, **kwargs: Any) -> None:
        super().__init__(partial(statistics.entropy, normalised=normalised), num_heads, **kwargs)


class DiagonalMass(MeanPerHead):
    """Mean attention of a patch to itself, mean_i A_ii, per head (H,), from 0 to 1; 1/P where uniform.

    What the query–key part of Trockman and Kolter 2023 (arXiv 2305.09828) raises. See ``diagonal_mass``.
    """

    def __init__(self, num_heads: int, prefix_tokens: int = 0, **kwargs: Any) -> None:
        statistic = partial(statistics.diagonal_mass, prefix_tokens=prefix_tokens)
        super().__init__(statistic, num_heads, prefix_tokens, **kwargs)


class Diagonality(MeanPerHead):
    """Mean over queries i of 1 − Σ_j A_ij d_ij / max_j d_ij, per head (H,), from 0 (the farthest) to 1 (itself).

    Zhang et al. 2020 (arXiv 2011.04906), with distances on the grid for images. See ``diagonality``.
    """

    def __init__(self, num_heads: int, grid: Grid, prefix_tokens: int = 0, **kwargs: Any) -> None:
        statistic = partial(statistics.diagonality, grid=grid, prefix_tokens=prefix_tokens)
        super().__init__(statistic, num_heads, prefix_tokens, **kwargs)


class FarMass(MeanPerHead):
    """Share of a patch's attention on patches farther than a radius, per head (H,), from 0 to 1.

    Ours. ``radius`` is Euclidean, in patches. See ``far_mass``.

    Attributes:
        uniform: the ``far_mass`` of uniform attention over the grid.
    """

    def __init__(
        self, num_heads: int, grid: Grid, prefix_tokens: int = 0, radius: int | float = 3, **kwargs: Any
    ) -> None:
        statistic = partial(statistics.far_mass, grid=grid, prefix_tokens=prefix_tokens, radius=radius)
        super().__init__(statistic, num_heads, prefix_tokens, **kwargs)
        self.uniform = statistics.uniform_far_mass(grid, radius)


class _AtOffset(MeanPerHead):
    """The mean of a statistic over the queries whose target, at a head's offset, is on the grid and no padding."""

    function: Callable[..., Tensor]

    def __init__(self, offsets: Offsets, grid: Grid, prefix_tokens: int = 0, **kwargs: Any) -> None:
        place = {"offsets": torch.as_tensor(offsets), "grid": grid}
        statistic = partial(self.function, **place, prefix_tokens=prefix_tokens)
        super().__init__(statistic, len(offsets), prefix_tokens, **kwargs)
        self.place = place

    def weight(self, patches: Tensor) -> Tensor:
        return statistics.pairs_apart(patches, **self.place).sum(dim=(0, 2, 3))

    def compute(self) -> PerHead:
        """Return the mean; nan for a head without such queries."""
        return self.total / self.count


class ImpulseMass(_AtOffset):
    """Mean attention on the patch at a head's offset, over queries whose target is on the grid, per head (H,), 0 to 1.

    Ours, for the starts of arXiv 2401.12511 and 2505.19985. ``offsets`` holds (rows down, columns right) from query to
    target for each of the H heads. See ``impulse_mass``.
    """

    function = staticmethod(statistics.impulse_mass)


class ArgmaxAccuracy(_AtOffset):
    """How often a query looks most at the patch at its head's offset, per head (H,), from 0 to 1.

    Ours; ``offsets`` as for ``ImpulseMass``. See ``argmax_accuracy``.
    """

    function = staticmethod(statistics.argmax_accuracy)


class EffectiveRank(MeanPerHead):
    """Mean over samples of exp(H(σ / Σσ)) of a map's singular values σ, per head (H,), from 1 to N.

    Roy and Vetterli 2007. See ``effective_rank``.
    """

    def __init__(self, num_heads: int, **kwargs: Any) -> None:
        super().__init__(statistics.effective_rank, num_heads, **kwargs)

    def weight(self, patches: Tensor) -> int:
        """Return the number of samples."""
        return len(patches)


class OffsetProfile(MeanMap):
    """Mean attention over all pairs of patches at the same offset, (H, 2Gy − 1, 2Gx − 1), each from 0 to 1.

    Ours: the convolution that a head resembles, the query in the centre. See ``offset_profile``.
    """

    def compute(self) -> Float[Tensor, "heads offset_rows offset_columns"]:
        """Return the profile of the mean map."""
        return statistics.profile_of(super().compute(), self.count > 0, self.grid)


class ProfileEnergy(MeanMap):
    """Share of Σ A² of the mean map that its offset profile explains, per head (H,), up to 1 for a convolution.

    Ours. It belongs to the mean map over all samples, and is no mean of the energies of batches. See
    ``profile_energy``.
    """

    def compute(self) -> PerHead:
        """Return the energy of the mean map."""
        return statistics.energy_of(super().compute(), self.count > 0, self.grid)


class StructureLeft(Sums):
    """Cosine between maps before and after training, less uniform attention, per head (H,), from −1 to 1.

    Ours. One where the pattern of the initialization is still there, sharper or softer; zero where nothing of it is.
    ``causal``: a token may only look at itself and what is before it. See ``structure_left``.
    """

    def __init__(self, num_heads: int, prefix_tokens: int = 0, causal: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.prefix_tokens, self.causal = prefix_tokens, causal
        self.add_sums(between=(num_heads,), before=(num_heads,), after=(num_heads,))

    def update(self, before: Maps, after: Maps) -> None:
        """Add the maps of a batch of samples, before training and after it."""
        check_heads(before, self.between.shape[0])
        products = structure_products(before, after, self.prefix_tokens, self.causal)
        self.between = self.between + products.between
        self.before = self.before + products.before
        self.after = self.after + products.after

    def compute(self) -> PerHead:
        """Return the cosine per head; nan for a head without any pattern."""
        return Products(self.between, self.before, self.after).cosine()


class CKA(Sums):
    """Minibatch CKA, mean_b HSIC₁(K, L) / √(mean_b HSIC₁(K, K) · mean_b HSIC₁(L, L)), a number, 0 to 1 up to its noise.

    Nguyen, Raghu and Kornblith 2021 (arXiv 2010.15327), equation 2, whose minibatches are of equal size: then this is
    ``cka``. HSIC₁ is unbiased at any size m ≥ 4, so a smaller minibatch (the last one of an epoch) may come too; means
    count each by its number of samples. How samples are divided changes the estimate, and shuffling between updates
    of two networks would compare different samples: give both sides at once.

    Args:
        kernel: ``"linear"``, or ``"rbf"`` with half of each minibatch's median distance as bandwidth.
        **kwargs: see ``torchmetrics.Metric``.
    """

    def __init__(self, kernel: Literal["linear", "rbf"] = "linear", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        kernel_matrix(torch.eye(4), kernel)  # a wrong name fails here, not in the first update
        self.kernel = kernel
        self.add_sums(between=(), first=(), second=(), count=())

    def update(self, first: Float[Tensor, "samples ..."], second: Float[Tensor, "samples ..."]) -> None:
        """Add a minibatch: features (m, …) of the same samples; further axes are flattened."""
        k, other = (kernel_matrix(gram_matrix(features), self.kernel) for features in (first, second))
        self.between = self.between + len(k) * hsic1(k, other)
        self.first = self.first + len(k) * hsic1(k, k)
        self.second = self.second + len(k) * hsic1(other, other)
        self.count = self.count + len(k)

    def compute(self) -> Float[Tensor, ""]:
        """Return the similarity; nan where a representation is constant."""
        return alignment(self.between / self.count, self.first / self.count, self.second / self.count)


class _Score(Mean):
    """Mean attention on marked places per head (H,), over the tokens that have any."""

    def __init__(self, num_heads: int, **kwargs: Any) -> None:
        super().__init__(num_heads, **kwargs)

    def _add(self, maps: Maps, marked: Marked, queries: Queries | None) -> None:
        total, count = attention_on(maps, marked, queries)
        self.total, self.count = self.total + total, self.count + count


class PreviousTokenScore(_Score):
    """Mean attention on the token before, mean_t A_{t, t − δ}, per head (H,), from 0 to 1.

    Elhage et al. 2021; Olsson et al. 2022 (arXiv 2209.11895). ``offset`` is δ, in tokens before; negative for tokens
    after. See ``previous_token_score``.
    """

    def __init__(self, num_heads: int, offset: int = 1, **kwargs: Any) -> None:
        super().__init__(num_heads, **kwargs)
        self.offset = offset

    def update(self, maps: Maps, queries: Queries | None = None) -> None:
        """Add the maps of a batch, of all tokens or of those that are asked (B, N)."""
        check_heads(maps, self.total.shape[0])
        self._add(maps, at_offset(maps, self.offset), queries)


class InductionScore(_Score):
    """Mean attention on what followed an equal token before, per head (H,), from 0 to 1.

    The prefix-matching score of Olsson et al. 2022 (arXiv 2209.11895), which they take on random tokens that come
    twice (``repeated_tokens``). See ``induction_score``.
    """

    def update(
        self, maps: Maps, tokens: Tokens, queries: Queries | None = None, segments: Tokens | None = None
    ) -> None:
        """Add the maps of a batch with its tokens (B, N); see ``induction_score`` for the others."""
        check_heads(maps, self.total.shape[0])
        check_shape(maps, tokens, "tokens")
        self._add(maps, prefix_matches(tokens, segments), queries)

"""The scores of heads as torchmetrics: over many batches and processes, in constant memory.

Letters: B batch, H heads, N tokens. Every metric is the function of the same name applied to all batches at once. A
metric is for one layer.
"""

from __future__ import annotations

from typing import Any

from structured_init.analysis.accumulation import Sums, check_heads
from structured_init.analysis.heads import (
    Marked,
    Queries,
    Tokens,
    at_offset,
    attention_on,
    check_shape,
    prefix_matches,
)
from structured_init.analysis.statistics import Maps, PerHead


class _Score(Sums):
    """Mean attention on marked places, over the tokens that have any."""

    def __init__(self, num_heads: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_sums(total=(num_heads,), count=())

    def compute(self) -> PerHead:
        """Return the mean per head; nan before the first token that counts."""
        return self.total / self.count

    def _add(self, maps: Maps, marked: Marked, queries: Queries | None) -> None:
        total, count = attention_on(maps, marked, queries)
        self.total, self.count = self.total + total, self.count + count


class PreviousTokenScore(_Score):
    """Mean attention on the token before, mean_t A_{t, t − δ}, per head (H,), from 0 to 1.

    Elhage et al. 2021; Olsson et al. 2022 (arXiv 2209.11895). See ``previous_token_score``.

    Args:
        num_heads: H.
        offset: δ, in tokens before; negative for tokens behind.
        **kwargs: see ``torchmetrics.Metric``.
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

    Args:
        num_heads: H.
        **kwargs: see ``torchmetrics.Metric``.
    """

    def update(
        self, maps: Maps, tokens: Tokens, queries: Queries | None = None, segments: Tokens | None = None
    ) -> None:
        """Add the maps of a batch with its tokens (B, N); see ``induction_score`` for the others."""
        check_heads(maps, self.total.shape[0])
        check_shape(maps, tokens, "tokens")
        self._add(maps, prefix_matches(tokens, segments), queries)

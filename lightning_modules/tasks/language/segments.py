"""Several documents in one block: who sees whom, and where each begins.

Letters: B batch, T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor


def segment_mask(segment_ids: Tensor, *, causal: bool) -> Tensor:
    """Return (B, 1, T, T) bool, true where a token sees another: those of its own document, the earlier ones if causal.

    Padding sees padding, so that no row is empty; no document sees it.

    Args:
        segment_ids: (B, T); 0 is padding, 1, 2, … are the documents.
        causal: whether later tokens are hidden.
    """
    mask = segment_ids[:, :, None] == segment_ids[:, None, :]
    return (mask.tril() if causal else mask)[:, None]


def segment_positions(segment_ids: Tensor) -> Tensor:
    """Return (B, T) positions that start again at 0 with each document.

    Args:
        segment_ids: (B, T); a document is a run of equal numbers.
    """
    index = torch.arange(segment_ids.shape[1], device=segment_ids.device).expand_as(segment_ids)
    begins = torch.ones_like(segment_ids, dtype=torch.bool)
    begins[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
    return index - torch.where(begins, index, 0).cummax(dim=1).values


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask that is added to logits: 0 where true, the lowest number elsewhere."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)

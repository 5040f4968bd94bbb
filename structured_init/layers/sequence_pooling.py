"""Sequence pooling: a learned weighted mean of tokens in place of a class token."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from structured_init.layers.token_softmax import TokenSoftmaxValue


class SequencePooling(nn.Module):
    """Pool tokens by softmax(g(x)) over tokens, with g a linear layer to one number.

    Args:
        embed_dim: D.
        values: what is pooled in place of the tokens themselves; ``None`` for the tokens.

    Source: Hassani et al., "Escaping the Big Data Paradigm with Compact Transformers", arXiv 2104.05704, eq. 5.
    """

    def __init__(self, embed_dim: int, values: TokenSoftmaxValue | None = None) -> None:
        super().__init__()
        self.score = nn.Linear(embed_dim, 1)
        self.values = values

    def forward(
        self, tokens: Float[Tensor, "batch tokens embed_dim"], mask: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch embed_dim"]:
        """Pool (B, N, D) to (B, D); a mask (B, N) is true for the tokens that count. Without any, all do."""
        scores = self.score(tokens).squeeze(-1)
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        values = tokens if self.values is None else self.values(tokens, mask)
        return (scores.softmax(-1).to(values.dtype).unsqueeze(-2) @ values).squeeze(-2)

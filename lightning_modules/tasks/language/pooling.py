"""From the hidden states of a text to its class.

Letters: B batch, T tokens, D width, K classes.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

Pool = Literal["mean", "first", "last"]
POOLS = ("mean", "first", "last")


def pool_tokens(hidden: Tensor, mask: Tensor, pool: Pool) -> Tensor:
    """Return one vector per text, (B, D).

    Args:
        hidden: (B, T, D).
        mask: (B, T), 1 where there is text; padding may stand on either side.
        pool: ``mean`` of the text's tokens, the ``first`` (an encoder's class token) or the ``last`` of them (the only
            one that has seen all, in a causal model).
    """
    if pool == "mean":
        weight = mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * weight).sum(1) / weight.sum(1).clamp(min=1)
    place = torch.arange(mask.shape[1], device=mask.device)
    index = mask.argmax(1) if pool == "first" else (place * mask).argmax(1)
    return hidden[torch.arange(len(hidden), device=hidden.device), index]


class PooledClassifier(nn.Module):
    """A backbone, its pooled tokens, and a linear layer.

    Args:
        backbone: takes ``input_ids`` and ``attention_mask`` (B, T) and returns (B, T, D), or what has
            ``.last_hidden_state``.
        width: D.
        num_classes: K.
        pool: see :func:`pool_tokens`.
        dropout: before the linear layer.
        std: of the linear layer's weights, normal; its biases are 0.
    """

    def __init__(
        self, backbone: nn.Module, width: int, num_classes: int, pool: Pool, dropout: float = 0.1, std: float = 0.02
    ) -> None:
        super().__init__()
        self.backbone, self.pool = backbone, pool
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(width, num_classes)
        nn.init.normal_(self.head.weight, std=std)
        nn.init.zeros_(self.head.bias)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return logits (B, K) of token numbers (B, T)."""
        output = self.backbone(input_ids, attention_mask=attention_mask)
        hidden = getattr(output, "last_hidden_state", output)
        return self.head(self.dropout(pool_tokens(hidden, attention_mask, self.pool)))

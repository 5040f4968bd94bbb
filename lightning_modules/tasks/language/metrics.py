"""The loss of a batch of tokens, and loss, perplexity and bits per character from the same three sums.

``torchmetrics.text.Perplexity`` takes logits and computes a second softmax; these take what the loss has computed.

Letters: B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric, MetricCollection

IGNORED = -100  # the label of what is not predicted, as torch and transformers have it


class TokenLoss(NamedTuple):
    """What a batch costs."""

    objective: Tensor  # what is minimized, a mean over predicted tokens in nats
    nats: Tensor  # sum of −log p over the predicted tokens; detached
    predicted: Tensor  # (B, T) bool, which tokens are predicted


def token_loss(logits: Tensor, labels: Tensor) -> TokenLoss:
    """Return the cross-entropy of predicted tokens, in float32 whatever the logits (B, T, V) are.

    Labels (B, T) stand at the positions of the logits that predict them, −100 where nothing is predicted. A batch of
    such labels alone costs 0, where a mean would be 0 / 0 and end the training.
    """
    predicted = labels != IGNORED
    flat = logits.float().flatten(0, -2)
    nats = F.cross_entropy(flat, labels.flatten(), ignore_index=IGNORED, reduction="sum")
    return TokenLoss(nats / predicted.sum().clamp(min=1), nats.detach(), predicted)


def shifted(values: Tensor, fill: int) -> Tensor:
    """Move values (B, T) to the positions whose logits predict them: one to the left, ``fill`` at the end."""
    return F.pad(values[:, 1:], (0, 1), value=fill)


class TokenMetric(Metric):
    """Sums over all predicted tokens of all batches and processes."""

    full_state_update = False
    is_differentiable = False
    higher_is_better = False
    nats: Tensor  # sum of −log p
    tokens: Tensor  # how many tokens were predicted
    characters: Tensor  # how many characters of the text they stand for

    def __init__(self) -> None:
        super().__init__()
        self.add_state("nats", torch.tensor(0.0), dist_reduce_fx="sum")
        for name in ("tokens", "characters"):
            self.add_state(name, torch.tensor(0), dist_reduce_fx="sum")

    def update(self, nats: Tensor, tokens: Tensor, characters: Tensor | int = 0) -> None:
        """Count a batch, in the units of the attributes."""
        self.nats += nats
        self.tokens += tokens
        self.characters += characters


class NatsPerToken(TokenMetric):
    """Mean −log p of a predicted token, in nats."""

    def compute(self) -> Tensor:
        return self.nats / self.tokens


class TokenPerplexity(TokenMetric):
    """exp of the mean over all predicted tokens: a batch counts by its tokens, and no mean of means is taken."""

    def compute(self) -> Tensor:
        return torch.exp(self.nats / self.tokens)


class BitsPerCharacter(TokenMetric):
    """Bits per character of the text, comparable between tokenizers."""

    def compute(self) -> Tensor:
        return self.nats / math.log(2) / self.characters


def token_metrics(prefix: str) -> MetricCollection:
    """Return ``loss``, ``perplexity`` and ``bits_per_character``, which share one set of sums."""
    metrics = {
        "loss": NatsPerToken(),
        "perplexity": TokenPerplexity(),
        "bits_per_character": BitsPerCharacter(),
    }
    return MetricCollection(metrics, prefix=prefix, compute_groups=[list(metrics)])

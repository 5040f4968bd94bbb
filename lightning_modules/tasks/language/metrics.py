"""Loss, perplexity and bits per character or byte, each from the same four sums over tokens.

``torchmetrics.text.Perplexity`` takes logits and computes a second softmax; these take what the loss has computed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection


class TokenMetric(Metric):
    """Sums over all predicted tokens of all batches and processes.

    Attributes:
        nats: sum of −log p.
        tokens: how many tokens were predicted.
        characters: how many characters of the text they stand for.
        bytes: how many bytes of the text in UTF-8 they stand for.
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = False
    nats: Tensor
    tokens: Tensor
    characters: Tensor
    bytes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("nats", torch.tensor(0.0), dist_reduce_fx="sum")
        for name in ("tokens", "characters", "bytes"):
            self.add_state(name, torch.tensor(0), dist_reduce_fx="sum")

    def update(self, nats: Tensor, tokens: Tensor, characters: Tensor | int = 0, bytes: Tensor | int = 0) -> None:
        """Count a batch.

        Args:
            nats: sum of −log p over its predicted tokens.
            tokens: how many were predicted.
            characters: how many characters they stand for.
            bytes: how many bytes they stand for.
        """
        self.nats += nats
        self.tokens += tokens
        self.characters += characters
        self.bytes += bytes


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


class BitsPerByte(TokenMetric):
    """Bits per byte of the text in UTF-8, comparable between tokenizers and languages."""

    def compute(self) -> Tensor:
        return self.nats / math.log(2) / self.bytes


def token_metrics(prefix: str) -> MetricCollection:
    """Return ``loss``, ``perplexity``, ``bits_per_character`` and ``bits_per_byte``, which share one set of sums."""
    metrics = {
        "loss": NatsPerToken(),
        "perplexity": TokenPerplexity(),
        "bits_per_character": BitsPerCharacter(),
        "bits_per_byte": BitsPerByte(),
    }
    return MetricCollection(metrics, prefix=prefix, compute_groups=[list(metrics)])

"""Text classification with the backbone of any text model.

Letters: B batch, T tokens, D width, K classes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassF1Score

from lightning_modules.networks.compact_transformer import text_arguments, text_compact_transformer
from lightning_modules.networks.transformers_network import BUILDERS, model_type, transformers_network
from lightning_modules.tasks.language.model import Batch, tokens_as_text
from lightning_modules.tasks.task import ClassifierTask
from structured_init.util.arguments import check_share


def mean_token(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of each text's tokens, (B, D) of (B, T, D), by a mask (B, T), 1 where there is text."""
    weight = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weight).sum(1) / weight.sum(1).clamp(min=1)


def last_token(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return each text's last token, (B, D) of (B, T, D); padding may stand on either side."""
    last = (torch.arange(mask.shape[1], device=mask.device) * mask).argmax(1)
    return hidden[torch.arange(len(hidden), device=hidden.device), last]


class PooledClassifier(nn.Module):
    """A backbone, dropout, and a linear layer with normal weights and biases of 0, on one vector for each text.

    That is the last token of a ``causal`` backbone, the only one that has seen all, else the mean. The backbone takes
    ``input_ids`` and ``attention_mask`` (B, T), and returns (B, T, D) or what has ``.last_hidden_state``.
    """

    def __init__(
        self, backbone: nn.Module, width: int, num_classes: int, causal: bool, dropout: float = 0.1, std: float = 0.02
    ) -> None:
        super().__init__()
        self.backbone, self.pool = backbone, last_token if causal else mean_token
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(width, num_classes)
        nn.init.normal_(self.head.weight, std=std)
        nn.init.zeros_(self.head.bias)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return logits (B, K) of token numbers (B, T)."""
        output = self.backbone(input_ids, attention_mask=attention_mask)
        hidden = getattr(output, "last_hidden_state", output)
        return self.head(self.dropout(self.pool(hidden, attention_mask)))


class TextClassifier(ClassifierTask):
    """Classifies texts. Override :meth:`configure_network` to bring an architecture of your own.

    A batch is a dictionary: ``input_ids`` and ``attention_mask`` (B, T), 1 where there is text, and ``labels`` (B,).
    Logs ``{train,val,test}/accuracy``, ``f1`` (mean over the classes) and ``loss`` once per epoch; the training loss is
    that of the smoothed targets.

    Args:
        network: a model type of transformers (``bert``, ``gpt2``, …) or one of its classes, a compact transformer
            (``text_cct_2_1x1``, …), or a ``class_path`` whose ``init_args`` say everything; such a network takes
            ``input_ids`` and ``attention_mask`` and returns logits (B, K).
        network_args: fields of the model's config, or arguments of the compact transformer.
        num_classes: K; taken from the data on the command line.
        vocab_size: tokens of the tokenizer; taken from the data on the command line.
        block_size: the longest input; taken from the data on the command line.
        dropout: before the last linear layer, which takes the mean of an encoder's tokens, or the last of a causal
            model. The host's own pooling layer is left out.
        label_smoothing: share of the target spread over all classes, in [0, 1).
        task: of :class:`Task`: ``optimizer``, ``warmup_epochs``, ``lr_schedule``, ….

    Raises:
        StructuredInitError: unknown network or field; sizes that do not fit; a number out of range.
    """

    def __init__(
        self,
        network: str | nn.Module = "bert",
        network_args: dict[str, Any] | None = None,
        num_classes: int = 2,
        vocab_size: int = 256,
        block_size: int = 128,
        dropout: float = 0.1,
        label_smoothing: float = 0.0,
        **task: Any,
    ) -> None:
        check_share("TextClassifier", label_smoothing=label_smoothing, dropout=dropout)
        self.num_classes, self.vocab_size, self.block_size = num_classes, vocab_size, block_size
        self.dropout, self.label_smoothing = dropout, label_smoothing
        super().__init__(network, network_args, **task)
        self.count_classes(f1=MulticlassF1Score(num_classes, average="macro", validate_args=False))

    def named_network(self, name: str) -> nn.Module:
        if text_arguments(name):
            arguments = {"seq_len": self.block_size, **self.network_args}
            classes = {"vocab_size": self.vocab_size, "num_classes": self.num_classes}
            return text_compact_transformer(name, **classes, **arguments)
        sizes = {"tokenizer_size": self.vocab_size, "block_size": self.block_size}
        backbone = transformers_network(name, purpose="backbone", **sizes, **self.network_args)
        if getattr(backbone, "pooler", None) is not None:
            backbone.pooler = None  # its weights would get no gradient
        encoder = model_type(name, "backbone") in BUILDERS["masked"][1] and not backbone.config.is_decoder
        std = getattr(backbone.config, "initializer_range", 0.02)
        width = backbone.config.hidden_size
        return PooledClassifier(backbone, width, self.num_classes, not encoder, self.dropout, std)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return logits (B, K) of token numbers (B, T)."""
        return self.network(input_ids, attention_mask)

    def probe_inputs(self, batch: Batch) -> Batch:
        return {name: batch[name] for name in ("input_ids", "attention_mask")}

    def probe_tokens(self, batch: Batch) -> list[list[str]]:
        return tokens_as_text(self, batch["input_ids"])

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return self._step(batch, self.train_metrics, self.label_smoothing)

    def evaluate(self, split: str, batch: Batch, batch_idx: int) -> None:
        self._step(batch, self.known_metrics(split))

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return class probabilities (B, K)."""
        return self(**self.probe_inputs(batch)).softmax(-1)

    def _step(self, batch: Batch, metrics: MetricCollection, label_smoothing: float = 0.0) -> Tensor:
        """Return the loss of a batch, and count it."""
        labels = batch["labels"]
        logits = self(**self.probe_inputs(batch))
        loss = F.cross_entropy(logits.float(), labels, label_smoothing=label_smoothing)
        self.count(metrics, logits, labels, loss)
        return loss

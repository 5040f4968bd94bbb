"""Language modelling with any network, causal or masked; several documents in one block do not see each other.

Letters: B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

import inspect
from typing import Any, Literal

import torch
import torch.nn.functional as F
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

from lightning_modules.networks.token_mixing import mix_tokens
from lightning_modules.networks.transformers_network import first_position, transformers_network
from lightning_modules.tasks.language.metrics import IGNORED, shifted, token_loss, token_metrics
from lightning_modules.tasks.task import NetworkTask, Task
from structured_init.util.arguments import check_known, check_whole
from structured_init.util.errors import StructuredInitError


def segment_mask(segment_ids: Tensor, *, causal: bool) -> Tensor:
    """Return (B, 1, T, T) bool, true where a token sees another: those of its own document, the earlier ones if causal.

    Of ``segment_ids`` (B, T), 0 is padding and 1, 2, … are the documents. Padding sees padding, so that no row is
    empty; no document sees it.
    """
    mask = segment_ids[:, :, None] == segment_ids[:, None, :]
    return (mask.tril() if causal else mask)[:, None]


def segment_positions(segment_ids: Tensor) -> Tensor:
    """Return (B, T) positions that start again at 0 with each document, a run of equal numbers in (B, T)."""
    index = torch.arange(segment_ids.shape[1], device=segment_ids.device).expand_as(segment_ids)
    begins = torch.ones_like(segment_ids, dtype=torch.bool)
    begins[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
    return index - torch.where(begins, index, 0).cummax(dim=1).values


Batch = dict[str, Tensor]
OBJECTIVES = ("causal", "masked")


class LanguageModel(NetworkTask):
    """Models text. Override :meth:`configure_network` to bring an architecture of your own.

    A batch is a dictionary: ``input_ids`` (B, T) and ``labels`` (B, T) at the same positions, −100 where nothing is to
    be predicted (a causal model moves them by one itself); ``characters`` (B, T), how many of the text each label
    stands for, where bits per character are wanted; ``segment_ids`` (B, T) where a block holds several documents (1, 2,
    …; the first token of each has the label −100) or padding (0): documents do not see each other and count their
    positions from 0.

    Logs ``{train,val,test}/loss`` (nats per predicted token), ``perplexity`` (exp of it),
    and ``bits_per_character`` once per epoch, over all tokens of all batches and processes.

    Args:
        network: a model type of transformers (``gpt2``, ``llama``, ``bert``, …) or one of its classes, or a
            ``class_path`` whose ``init_args`` say everything. Such a network takes (B, T) token numbers, for packed
            documents also ``attention_mask`` (B, 1, T, T) and ``position_ids`` (B, T), and returns logits (B, T, V) or
            what has ``.logits``.
        network_args: fields of the model's config.
        vocab_size: tokens of the tokenizer; taken from the data on the command line.
        block_size: the longest input; taken from the data on the command line.
        objective: ``causal`` or ``masked``; taken from the data on the command line.
        token_mixing: ``short_convolution`` or ``canon`` lets a causal network mix each token with those before it (see
            :func:`mix_tokens`); a change of the network, to compare initializations with.
        optimizer: builds the optimizer from parameter groups; its ``lr`` is the peak of the schedule.
        task: of :class:`Task`: ``warmup_epochs``, ``lr_schedule``, ``compile``, ….

    Raises:
        StructuredInitError: unknown network or field; sizes that do not fit; a number out of range.
    """

    headline = ("perplexity", "min")

    def __init__(
        self,
        network: str | nn.Module = "gpt2",
        network_args: dict[str, Any] | None = None,
        vocab_size: int = 256,
        block_size: int = 128,
        objective: Literal["causal", "masked"] = "causal",
        token_mixing: str | None = None,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1),
        **task: Any,
    ) -> None:
        check_known("objective", objective, OBJECTIVES)
        check_whole("LanguageModel", vocab_size=vocab_size, block_size=block_size)
        if token_mixing and objective != "causal":
            raise StructuredInitError("token_mixing is for causal models: each token is mixed with those before it")
        self.vocab_size, self.block_size, self.objective = vocab_size, block_size, objective
        super().__init__(network, network_args, optimizer=optimizer, **task)
        if token_mixing:
            mix_tokens(self.network, token_mixing)
        self.set_metrics(token_metrics)
        self._first_position = first_position(self.network)
        taken = inspect.signature(self.network.forward).parameters
        open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())
        self._takes_segments = "attention_mask" in taken and ("position_ids" in taken or open_ended)
        self._characters_known = False

    def named_network(self, name: str) -> nn.Module:
        sizes = {"tokenizer_size": self.vocab_size, "block_size": self.block_size}
        return transformers_network(name, purpose=self.objective, **sizes, **self.network_args)

    def forward(self, input_ids: Tensor, segment_ids: Tensor | None = None) -> Tensor:
        """Return logits (B, T, V) of token numbers (B, T), of packed documents with their ``segment_ids`` (B, T)."""
        packed = {} if segment_ids is None else self._packed(segment_ids)
        output = self.network(input_ids, **packed)
        return getattr(output, "logits", output)

    def probe_inputs(self, batch: Batch) -> Batch:
        """Return token numbers, and segments where there are any: attention is captured on them."""
        return {name: batch[name] for name in ("input_ids", "segment_ids") if name in batch}

    def probe_tokens(self, batch: Batch) -> list[list[str]]:
        return tokens_as_text(self, batch["input_ids"])

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return self._step(batch, self.train_metrics)

    def evaluate(self, split: str, batch: Batch, batch_idx: int) -> None:
        self._step(batch, getattr(self, f"{split}_metrics"))

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return −log p of each predicted token (B, T) in nats, at the position that predicts it, and 0 elsewhere."""
        logits, labels = self(**self.probe_inputs(batch)), self._at_predictions(batch["labels"], IGNORED)
        return F.cross_entropy(logits.float().mT, labels, ignore_index=IGNORED, reduction="none")

    def _step(self, batch: Batch, metrics: MetricCollection) -> Tensor:
        """Return the loss of a batch, and count it. Logging here as well would cost a millisecond a step."""
        labels = self._at_predictions(batch["labels"], IGNORED)
        logits = self(**self.probe_inputs(batch))
        loss = token_loss(logits, labels)
        self._characters_known = "characters" in batch
        characters = self._at_predictions(batch["characters"], 0) if self._characters_known else loss.predicted
        metrics.update(loss.nats, loss.predicted.sum(), torch.where(loss.predicted, characters, 0).sum())
        return loss.objective

    def _at_predictions(self, values: Tensor, fill: int) -> Tensor:
        """Return values (B, T) at the positions whose logits predict them."""
        return shifted(values, fill) if self.objective == "causal" else values

    def _packed(self, segment_ids: Tensor) -> dict[str, Tensor]:
        """Return the mask and the positions that keep documents apart; refuse a network whose forward takes neither.

        One document before the padding of a last block needs neither where tokens see earlier ones alone.
        """
        if not self._takes_segments and self.objective == "causal" and segment_ids.max() <= 1:
            return {}
        if not self._takes_segments:
            raise StructuredInitError(
                f"{type(self.network).__name__}.forward takes no attention_mask and position_ids, which several "
                "documents in one block need: add them, or let the data's blocks cross documents"
            )
        mask = segment_mask(segment_ids, causal=self.objective == "causal")
        if getattr(getattr(self.network, "config", None), "_attn_implementation", None) == "eager":  # it adds its masks
            dtype = next(self.network.parameters()).dtype
            mask = torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
        return {"attention_mask": mask, "position_ids": segment_positions(segment_ids) + self._first_position}

    def known_metrics(self, split: str) -> dict[str, Metric]:
        """Return the metrics of a split by name, bits per character only where the batches count characters."""
        found = dict(getattr(self, f"{split}_metrics").items(keep_base=False, copy_state=False))
        if not self._characters_known:
            del found[f"{split}/bits_per_character"]
        return found


def tokens_as_text(task: Task, input_ids: Tensor) -> list[list[str]]:
    """Return tokens (B, T) as the tokenizer of the data writes them, else as numbers: the axes of an attention map."""
    tokenizer = getattr(getattr(task.attached_trainer, "datamodule", None), "tokenizer", None)
    as_text = str if tokenizer is None else lambda token: tokenizer.decode([token])
    return [[as_text(token) for token in tokens] for tokens in input_ids.tolist()]

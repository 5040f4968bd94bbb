"""Language modelling with any network, causal or masked.

Letters: B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

from lightning_modules.networks.token_mixing import mix_before_attention
from lightning_modules.networks.transformers_network import first_position, transformers_network
from lightning_modules.tasks.language.checks import check_batch, check_data, check_language_arguments
from lightning_modules.tasks.language.generation import generate
from lightning_modules.tasks.language.hosts import enable_gradient_checkpointing, takes_segments, uncompiled
from lightning_modules.tasks.language.loss import IGNORED, shifted, token_loss
from lightning_modules.tasks.language.metrics import token_metrics
from lightning_modules.tasks.language.samples import decode, encode, log_samples, token_strings
from lightning_modules.tasks.language.segments import additive, segment_mask, segment_positions
from lightning_modules.tasks.task import Task
from structured_init.errors import StructuredInitError

Batch = dict[str, Tensor]
PROMPT_TOKENS = 16  # of the validation text, where no prompt is given
TEXT = ("characters", "bytes")


class LanguageModel(Task):
    """Models text. Override :meth:`configure_network` to bring an architecture of your own.

    A batch is a dictionary: ``input_ids`` (B, T) and ``labels`` (B, T) at the same positions, −100 where nothing is to
    be predicted (a causal model moves them by one itself); ``characters`` and ``bytes`` (B, T), how much text each
    label stands for, where bits per character or byte are wanted; ``segment_ids`` (B, T) where a block holds several
    documents (1, 2, …; the first token of each has the label −100) or padding (0): documents do not see each other and
    count their positions from 0.

    Logs ``{train,val,test}/loss`` (nats per predicted token, without smoothing and z-loss), ``perplexity`` (exp of it),
    ``bits_per_character`` and ``bits_per_byte`` once per epoch, over all tokens of all batches and processes.

    Args:
        network: a model type of transformers (``gpt2``, ``llama``, ``bert``, …) or one of its classes, or a
            ``class_path`` whose ``init_args`` say everything. Such a network takes (B, T) token numbers, for packed
            documents also ``attention_mask`` (B, 1, T, T) and ``position_ids`` (B, T), and returns logits (B, T, V) or
            what has ``.logits``.
        network_args: fields of the model's config.
        pretrained: hub name or folder of weights to start from; none are ever fetched otherwise.
        vocab_size: tokens of the tokenizer; taken from the data on the command line.
        block_size: the longest input; taken from the data on the command line.
        objective: ``causal`` or ``masked``; taken from the data on the command line.
        label_smoothing: share of the target spread over the vocabulary in training, in [0, 1).
        z_loss: weight of log² Z in training; PaLM has 1e-4.
        sample_tokens: how many tokens each sample generated after a validation has; 0 generates none.
        sample_prompts: what the samples continue; the beginning of the validation text where null.
        sample_temperature: divides the logits of a sample; 0 takes the likeliest token.
        sample_top_k: a sample draws among so many likeliest tokens; all where null.
        sample_seed: of the samples' own generator: training is the same bit by bit with and without them.
        token_mixing: let attention of a causal network read a mixing of each token with those before it:
            ``token_shift`` or ``short_convolution``; a change of the network, to compare initializations with.
        gradient_checkpointing: keep no activations inside the layers; compute them again.
        optimizer: builds the optimizer from parameter groups; its ``lr`` is the peak of the schedule.
        warmup_epochs: epochs of linear warmup; may be a fraction.
        warmup_lr: learning rate of the first step, when there is a warmup.
        min_lr: learning rate at the end of the cosine.
        compile: compile the network, in place, when it first runs.
        lr_schedule: pairs [share of the run, share of ``lr``], joined by straight lines, in place of warmup and cosine.
        decay_all: apply the optimizer's weight decay to biases, norms, positions and tokens as well.

    Raises:
        StructuredInitError: unknown network, field or pretrained name; sizes that do not fit; a number out of range.
    """

    headline = ("perplexity", "min")

    def __init__(
        self,
        network: str | nn.Module = "gpt2",
        network_args: dict[str, Any] | None = None,
        pretrained: str | None = None,
        vocab_size: int = 256,
        block_size: int = 128,
        objective: Literal["causal", "masked"] = "causal",
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        sample_tokens: int = 0,
        sample_prompts: list[str] | None = None,
        sample_temperature: float = 1.0,
        sample_top_k: int | None = None,
        sample_seed: int = 0,
        token_mixing: str | None = None,
        gradient_checkpointing: bool = False,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1),
        warmup_epochs: float = 0.0,
        warmup_lr: float = 1e-5,
        min_lr: float = 1e-6,
        compile: bool = False,
        lr_schedule: list[list[float]] | None = None,
        decay_all: bool = False,
    ) -> None:
        check_language_arguments(objective, label_smoothing, z_loss, sample_tokens, sample_temperature, sample_top_k)
        if token_mixing and objective != "causal":
            raise StructuredInitError("token_mixing is for causal models: each token is mixed with those before it")
        self.network_args, self.pretrained = dict(network_args or {}), pretrained
        self.vocab_size, self.block_size, self.objective = vocab_size, block_size, objective
        self.label_smoothing, self.z_loss = label_smoothing, z_loss
        self.sample_tokens, self.sample_prompts, self.sample_seed = sample_tokens, sample_prompts, sample_seed
        self.sample_temperature, self.sample_top_k = sample_temperature, sample_top_k
        self._given_network = (network,)  # in a tuple: a bare module would register before super().__init__
        super().__init__(optimizer, warmup_epochs, warmup_lr, min_lr, compile, lr_schedule, decay_all)
        if token_mixing:
            mix_before_attention(self.network, token_mixing)
        if gradient_checkpointing:
            enable_gradient_checkpointing(self.network)
        self.train_metrics = token_metrics("train/")
        self.val_metrics = token_metrics("val/")
        self.test_metrics = token_metrics("test/")
        self._first_position = first_position(self.network)
        self._takes_segments = takes_segments(self.network)
        self._first_batch_checked = False
        self._text_known: dict[str, bool] = {}
        self._prompt: list[int] = []

    def configure_network(self) -> nn.Module:
        """Build the network from ``vocab_size``, ``block_size``, ``objective``, ``network_args`` and ``pretrained``."""
        (network,) = self._given_network
        if isinstance(network, nn.Module):
            return network
        return transformers_network(
            network,
            purpose=self.objective,
            tokenizer_size=self.vocab_size,
            block_size=self.block_size,
            pretrained=self.pretrained,
            **self.network_args,
        )

    def forward(self, input_ids: Tensor, segment_ids: Tensor | None = None) -> Tensor:
        """Return logits (B, T, V) of token numbers (B, T), of packed documents with their ``segment_ids`` (B, T)."""
        packed = {} if segment_ids is None else self._packed(segment_ids)
        output = self.network(input_ids, **packed)
        return getattr(output, "logits", output)

    def probe_inputs(self, batch: Batch) -> Batch:
        """Return token numbers, and segments where there are any: attention is captured on them."""
        return {name: batch[name] for name in ("input_ids", "segment_ids") if name in batch}

    def probe_tokens(self, batch: Batch) -> list[list[str]]:
        """Return the tokens of each sample of a batch as text, by the tokenizer of the data."""
        return [token_strings(self._tokenizer, ids) for ids in batch["input_ids"].tolist()]

    def setup(self, stage: str) -> None:
        """Compare what the data says with what the network was built for.

        Raises:
            StructuredInitError: they differ, or a sample's prompt cannot be read.
        """
        check_data(self, getattr(self.trainer, "datamodule", None))
        if self.sample_tokens and self.sample_prompts and self._tokenizer is None:
            raise StructuredInitError("sample_prompts need data with a tokenizer: leave them out")

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the loss of a batch, smoothed and with z-loss if asked for."""
        return self._step(batch, self.train_metrics, self.label_smoothing, self.z_loss)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Count the batch."""
        if self.sample_tokens and not self._prompt:
            self._prompt = batch["input_ids"][0, :PROMPT_TOKENS].tolist()
        self._step(batch, self.val_metrics)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Count the batch."""
        self._step(batch, self.test_metrics)

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return −log p of each predicted token (B, T) in nats, at the position that predicts it, and 0 elsewhere."""
        logits, labels = self(**self.probe_inputs(batch)), self._at_predictions(batch["labels"], IGNORED)
        return F.cross_entropy(logits.float().mT, labels, ignore_index=IGNORED, reduction="none")

    def on_train_epoch_end(self) -> None:
        """Log the epoch's metrics; Lightning then computes and resets them."""
        self.log_dict(self._known(self.train_metrics))

    def on_validation_epoch_end(self) -> None:
        """Log the validation's metrics, and samples where they are asked for."""
        self.log_dict(self._known(self.val_metrics), prog_bar=True)
        if self.sample_tokens and not self.trainer.sanity_checking:
            texts, folder = self.samples(), self.trainer.log_dir  # a collective: every rank asks
            if self.trainer.is_global_zero and not self.trainer.fast_dev_run:
                log_samples(self.trainer, Path(folder or self.trainer.default_root_dir), texts)

    def on_test_epoch_end(self) -> None:
        """Log the test's metrics."""
        self.log_dict(self._known(self.test_metrics))

    def samples(self) -> list[str]:
        """Return a continuation of every prompt, drawn anew from ``sample_seed``; no other random state is moved."""
        generator = torch.Generator().manual_seed(self.sample_seed)
        prompts = [encode(self._tokenizer, prompt) for prompt in self.sample_prompts or []] or [self._prompt]
        sampling = {"temperature": self.sample_temperature, "top_k": self.sample_top_k, "generator": generator}
        place = {"block_size": self.block_size, "device": self.device}
        with self.trainer.precision_plugin.forward_context(), uncompiled(self.network):
            texts = [generate(self, prompt, self.sample_tokens, **sampling, **place) for prompt in prompts]
        return [decode(self._tokenizer, text) for text in texts]

    @property
    def _tokenizer(self) -> Any:
        return getattr(getattr(self._trainer, "datamodule", None), "tokenizer", None)

    def _step(
        self, batch: Batch, metrics: MetricCollection, label_smoothing: float = 0.0, z_loss: float = 0.0
    ) -> Tensor:
        """Return the loss of a batch, and count it. Logging here as well would cost a millisecond a step."""
        if not self._first_batch_checked:
            check_batch(batch, self.network)
            self._first_batch_checked = True
        labels = self._at_predictions(batch["labels"], IGNORED)
        logits = self(**self.probe_inputs(batch))
        loss = token_loss(logits, labels, label_smoothing=label_smoothing, z_loss=z_loss)
        counted = [loss.predicted.sum()]
        for name in TEXT:
            self._text_known[name] = name in batch
            text = self._at_predictions(batch[name], 0) if name in batch else None
            counted.append(0 if text is None else torch.where(loss.predicted, text, 0).sum())
        metrics.update(loss.nats, *counted)
        return loss.objective

    def _at_predictions(self, values: Tensor, fill: int) -> Tensor:
        """Return values (B, T) at the positions whose logits predict them."""
        return shifted(values, fill) if self.objective == "causal" else values

    def _packed(self, segment_ids: Tensor) -> dict[str, Tensor]:
        """Return the mask and the positions that keep documents apart, as the network takes them.

        Raises:
            StructuredInitError: the network's forward takes neither.
        """
        if not self._takes_segments:
            raise StructuredInitError(
                f"{type(self.network).__name__}.forward takes no attention_mask and position_ids, which several "
                "documents in one block need: add them, or let the data's blocks cross documents"
            )
        mask = segment_mask(segment_ids, causal=self.objective == "causal")
        if getattr(getattr(self.network, "config", None), "_attn_implementation", None) == "eager":
            mask = additive(mask, next(self.network.parameters()).dtype)
        return {"attention_mask": mask, "position_ids": segment_positions(segment_ids) + self._first_position}

    def _known(self, metrics: MetricCollection) -> dict[str, Metric]:
        """Return the metrics by name, without those that the batches do not tell."""
        unknown = tuple(f"bits_per_{name.removesuffix('s')}" for name in TEXT if not self._text_known.get(name))
        found = metrics.items(keep_base=False, copy_state=False)
        return {name: metric for name, metric in found if not name.endswith(unknown)}

"""Recall with any causal sequence model.

Letters: B batch, L tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from lightning_modules.networks.sequence.backbones import create_backbone
from lightning_modules.networks.transformers_network import number_of_positions
from lightning_modules.tasks.language.loss import token_loss
from lightning_modules.tasks.language.metrics import NatsPerToken
from lightning_modules.tasks.recall.metrics import RecallByLength
from lightning_modules.tasks.task import Task
from structured_init.errors import StructuredInitError

Batch = dict[str, Tensor]


class SequenceRecall(Task):
    """Predicts the answer of a recall task. Override :meth:`configure_network` to bring an architecture of your own.

    Batches are those of :class:`RecallData`. The loss is that of the answer alone. All is measured with the right
    answer before each token, as the published code does; since an exact match needs every token right, the answer that
    a model generates from its own tokens is then the same.

    Logs ``train/loss``, and for validation and test ``loss`` (nats per answer token), ``exact_match`` and
    ``token_accuracy`` (shares, 0 to 1), both again per length (``test/exact_match_100``), and ``longest_solved``.

    Args:
        network: ``mamba``, ``mamba2``, ``hybrid``, ``gpt2``, ``llama``, ``linear_attention``, or a ``class_path`` whose
            ``init_args`` say everything. Such a network takes (B, L) token numbers and returns logits (B, L, V) or what
            has ``.logits``.
        network_args: further arguments of a network given by name.
        vocab_size: token numbers; taken from the data on the command line.
        block_size: the longest input; taken from the data on the command line.
        solved: share of exact matches from which a length counts as solved.
        optimizer: builds the optimizer from parameter groups; its ``lr`` is the peak of the schedule.
        warmup_epochs: epochs of linear warmup; may be a fraction.
        warmup_lr: learning rate of the first step, when there is a warmup.
        min_lr: learning rate at the end of the cosine.
        compile: compile the network, in place, when it first runs.
        lr_schedule: pairs [share of the run, share of ``lr``], joined by straight lines, in place of warmup and cosine.
        decay_all: apply the optimizer's weight decay to biases, norms and positions as well; never to a state-space
            layer's decays, step biases and skips.

    Raises:
        StructuredInitError: unknown network or argument; a length beyond the positions of an attention network; sizes
            that do not divide.
    """

    headline = ("exact_match", "max")

    def __init__(
        self,
        network: str | nn.Module = "mamba2",
        network_args: dict[str, Any] | None = None,
        vocab_size: int = 30,
        block_size: int = 402,
        solved: float = 0.95,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1),
        warmup_epochs: float = 0.0,
        warmup_lr: float = 1e-5,
        min_lr: float = 1e-6,
        compile: bool = False,
        lr_schedule: list[list[float]] | None = None,
        decay_all: bool = False,
    ) -> None:
        if not 0 < solved <= 1:
            raise StructuredInitError(f"solved must be in (0, 1], got {solved}")
        self.network_args, self.vocab_size, self.block_size = dict(network_args or {}), vocab_size, block_size
        self.solved = solved
        self._given_network = (network,)  # in a tuple: a bare module would register before super().__init__
        super().__init__(optimizer, warmup_epochs, warmup_lr, min_lr, compile, lr_schedule, decay_all)
        self.losses = nn.ModuleDict({f"{part}_loss": NatsPerToken() for part in ("train", "val", "test")})
        self._first_batch_checked = False

    def configure_network(self) -> nn.Module:
        """Build the network from ``vocab_size``, ``block_size`` and ``network_args``."""
        (network,) = self._given_network
        if isinstance(network, nn.Module):
            return network
        return create_backbone(network, self.vocab_size, self.block_size, **self.network_args)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return logits (B, L, V) of token numbers (B, L)."""
        output = self.network(input_ids)
        return getattr(output, "logits", output)

    def probe_inputs(self, batch: Batch) -> Tensor:
        """Return the token numbers of a batch: attention is captured on them."""
        return batch["input_ids"]

    def probe_queries(self, batch: Batch) -> Tensor:
        """Return the tokens of a batch that are scored: the induction score of attention is taken there."""
        return batch["scored"]

    def setup(self, stage: str) -> None:
        """Compare the data with the network, and learn which lengths there are to tell apart.

        Raises:
            StructuredInitError: the data has more token numbers, or a longer input, than the network has room for.
        """
        data = getattr(self.trainer, "datamodule", None)
        tokens, length = (getattr(data, name, None) for name in ("vocab_size", "block_size"))
        if tokens is not None and tokens > self.vocab_size:
            raise StructuredInitError(
                f"the data has {tokens} token numbers, the network {self.vocab_size}: set vocab_size"
            )
        positions = number_of_positions(self.network)
        if None not in (length, positions) and length > positions:
            raise StructuredInitError(
                f"the data's longest input has {length} tokens, the network {positions} positions: set block_size, or "
                "shorten test_lengths"
            )
        longest = getattr(data, "max_length", None)
        lengths = {"val": [] if longest is None else [longest], "test": getattr(data, "test_lengths", [])}
        # Not modules of this one: what they are is known only now, and nothing of them belongs into a checkpoint.
        self.recall = {part: RecallByLength(known, self.solved) for part, known in lengths.items()}

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the loss of the answers."""
        return self._step("train", batch)[0]

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Count the batch."""
        self._evaluate("val", batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Count the batch."""
        self._evaluate("test", batch)

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the likeliest token at each position (B, L), given the right ones before it."""
        return self(batch["input_ids"]).argmax(-1)

    def on_train_epoch_end(self) -> None:
        """Log the epoch's loss; Lightning then computes and resets it."""
        self.log("train/loss", self.losses["train_loss"])

    def on_validation_epoch_end(self) -> None:
        """Log how much was recalled."""
        self._log("val")

    def on_test_epoch_end(self) -> None:
        """Log how much was recalled, at each length."""
        self._log("test")

    def _step(self, part: str, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss and the logits of a batch, and count the loss."""
        if not self._first_batch_checked:
            self._check(batch)
            self._first_batch_checked = True
        logits = self(batch["input_ids"])
        loss = token_loss(logits, batch["targets"])
        self.losses[f"{part}_loss"].update(loss.nats, loss.predicted.sum())
        return loss.objective, logits

    def _evaluate(self, part: str, batch: Batch) -> None:
        _, logits = self._step(part, batch)
        recall = self.recall[part].to(self.device)
        recall.update(logits.argmax(-1), batch["targets"], batch["scored"], batch["lengths"])

    def _log(self, part: str) -> None:
        self.log(f"{part}/loss", self.losses[f"{part}_loss"])
        found = {f"{part}/{name}": value for name, value in self.recall[part].compute().items()}
        self.log_dict(found, prog_bar=part == "val")
        self.recall[part].reset()

    def _check(self, batch: Batch) -> None:
        """Look at the first batch, and at no later one: reading numbers waits for the device."""
        largest = max(int(batch[name].max()) for name in ("input_ids", "targets"))
        if largest >= self.vocab_size:
            raise StructuredInitError(
                f"the data has token number {largest}, the network {self.vocab_size} of them: set vocab_size"
            )

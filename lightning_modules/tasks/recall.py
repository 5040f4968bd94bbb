"""Recall with any causal sequence model: how much of an answer is right, by the length of what was to be remembered.

Letters: B batch, L tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

from lightning_modules.networks.sequence import create_backbone
from lightning_modules.networks.token_mixing import mix_tokens
from lightning_modules.tasks.language.metrics import NatsPerToken, token_loss
from lightning_modules.tasks.task import NetworkTask

SOLVED = 0.95  # share of exact matches from which a length counts as solved


class RecallByLength(Metric):
    """Exact match and accuracy per token, for each of some known lengths.

    Args:
        lengths: the lengths to tell apart; examples of others count in the means over everything alone.

    Attributes:
        counts: (lengths + 1, 4): examples, exact matches, scored tokens, right ones among them; the last row is of all.
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = True
    counts: Tensor

    def __init__(self, lengths: list[int]) -> None:
        super().__init__()
        self.lengths = sorted(set(lengths))
        self.add_state("counts", torch.zeros(len(self.lengths) + 1, 4, dtype=torch.float64), dist_reduce_fx="sum")

    @property
    def names(self) -> list[str]:
        """What :meth:`compute` may return."""
        means = ("exact_match", "token_accuracy")
        return [*means, *(f"{mean}_{length}" for length in self.lengths for mean in means), "longest_solved"]

    def update(self, predictions: Tensor, targets: Tensor, scored: Tensor, lengths: Tensor) -> None:
        """Count a batch: of predictions and targets (B, L), the positions that are scored (B, L); lengths are (B,).

        A prediction is the likeliest token, given the right answer before it.
        """
        wrong, asked = ((predictions != targets) & scored).sum(1), scored.sum(1)
        rows = torch.stack([torch.ones_like(asked), wrong == 0, asked, asked - wrong], dim=1).to(self.counts)
        known = torch.tensor(self.lengths, device=lengths.device, dtype=lengths.dtype)
        of = torch.cat([lengths[None] == known[:, None], torch.ones_like(lengths[None], dtype=torch.bool)])
        self.counts += of.to(self.counts) @ rows

    def compute(self) -> dict[str, Tensor]:
        """Return the means over all examples, those per length, and the longest length that is solved.

        ``exact_match`` and ``token_accuracy`` over everything, ``exact_match_L`` and ``token_accuracy_L`` for each
        length L that was seen, and ``longest_solved``: the largest L up to which every one is solved, 0 where none is.
        """
        examples, exact, tokens, right = self.counts.unbind(1)
        found = {"exact_match": exact[-1] / examples[-1], "token_accuracy": right[-1] / tokens[-1]}
        longest = torch.zeros_like(examples[-1])
        going_on = True
        for number, length in enumerate(self.lengths):
            if not examples[number]:
                continue
            found[f"exact_match_{length}"] = exact[number] / examples[number]
            found[f"token_accuracy_{length}"] = right[number] / tokens[number]
            going_on = going_on and bool(found[f"exact_match_{length}"] >= SOLVED)
            longest = torch.full_like(longest, length) if going_on else longest
        return {name: value.float() for name, value in {**found, "longest_solved": longest}.items()}


Batch = dict[str, Tensor]


class SequenceRecall(NetworkTask):
    """Predicts the answer of a recall task. Override :meth:`configure_network` to bring an architecture of your own.

    Batches are those of :class:`RecallData`. The loss is that of the answer alone. All is measured with the right
    answer before each token, as the published code does; since an exact match needs every token right, the answer that
    a model generates from its own tokens is then the same.

    Logs ``train/loss``, and for validation and test ``loss`` (nats per answer token), ``exact_match`` and
    ``token_accuracy`` (shares, 0 to 1), both again per length (``test/exact_match_100``), and ``longest_solved``.

    Args:
        network: ``mamba``, ``mamba2``, ``gpt2``, ``llama``, or a ``class_path`` whose ``init_args`` say everything.
            Such a network takes (B, L) token numbers and returns logits (B, L, V) or what has ``.logits``.
        network_args: further arguments of a network given by name.
        vocab_size: token numbers; taken from the data on the command line.
        block_size: the longest input; taken from the data on the command line.
        token_mixing: ``short_convolution`` or ``canon`` lets the network mix each token with those before it (see
            :func:`mix_tokens`); a change of the network, to compare initializations with.
        optimizer: builds the optimizer from parameter groups; its ``lr`` is the peak of the schedule.
        task: of :class:`Task`: ``warmup_epochs``, ``lr_schedule``, ``decay_all``, ….

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
        token_mixing: str | None = None,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1),
        **task: Any,
    ) -> None:
        self.vocab_size, self.block_size = vocab_size, block_size
        super().__init__(network, network_args, optimizer=optimizer, **task)
        if token_mixing:
            mix_tokens(self.network, token_mixing)
        self.set_metrics(lambda prefix: MetricCollection({"loss": NatsPerToken()}, prefix=prefix))

    def named_network(self, name: str) -> nn.Module:
        return create_backbone(name, self.vocab_size, self.block_size, **self.network_args)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return logits (B, L, V) of token numbers (B, L)."""
        output = self.network(input_ids)
        return getattr(output, "logits", output)

    def probe_inputs(self, batch: Batch) -> Tensor:
        return batch["input_ids"]

    def probe_queries(self, batch: Batch) -> Tensor:
        """Return the tokens of a batch that are scored: the induction score of attention is taken there."""
        return batch["scored"]

    def setup(self, stage: str) -> None:
        """Refuse data for which the network has no room, and learn which lengths there are to tell apart."""
        super().setup(stage)
        # Not modules of this one: what they are is known only now, and nothing of them belongs into a checkpoint.
        self.recall = self.recall_of(getattr(self.trainer, "datamodule", None))

    def recall_of(self, data: object) -> dict[str, RecallByLength]:
        """Return the metrics of each split, whose names ``compare`` asks for; lengths are those of the data."""
        longest = getattr(data, "max_length", None)
        lengths = {"val": [] if longest is None else [longest], "test": getattr(data, "test_lengths", [])}
        return {part: RecallByLength(known) for part, known in lengths.items()}

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return self._step("train", batch)[0]

    def evaluate(self, split: str, batch: Batch, batch_idx: int) -> None:
        _, logits = self._step(split, batch)
        recall = self.recall[split].to(self.device)
        recall.update(logits.argmax(-1), batch["targets"], batch["scored"], batch["lengths"])

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the likeliest token at each position (B, L), given the right ones before it."""
        return self(batch["input_ids"]).argmax(-1)

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        self._log_recall("val")

    def on_test_epoch_end(self) -> None:
        super().on_test_epoch_end()
        self._log_recall("test")

    def _step(self, part: str, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss and the logits of a batch, and count the loss."""
        logits = self(batch["input_ids"])
        loss = token_loss(logits, batch["targets"])
        self.known_metrics(part).update(loss.nats, loss.predicted.sum())
        return loss.objective, logits

    def _log_recall(self, part: str) -> None:
        found = {f"{part}/{name}": value for name, value in self.recall[part].compute().items()}
        self.log_dict(found, prog_bar=part == "val")
        self.recall[part].reset()

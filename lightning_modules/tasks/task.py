"""What every task shares: one network, grouped parameters, a schedule by step, and a checked resumption."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchmetrics import MeanMetric, Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from lightning_modules.tasks.checkpoint import is_plain, refuse_changed_arguments, refuse_other_weights
from lightning_modules.tasks.optim import build_optimizer, check_schedule, piecewise_linear, warmup_cosine
from structured_init.util.arguments import check_not_negative
from structured_init.util.errors import StructuredInitError


class Task(LightningModule):
    """Base of the tasks. A subclass sets what its network needs, then calls ``super().__init__``.

    Args:
        optimizer: builds the optimizer from parameter groups; its ``lr`` is the peak of the schedule.
        warmup_epochs: epochs of linear warmup; may be a fraction.
        warmup_lr: learning rate of the first step, when there is a warmup.
        min_lr: learning rate at the end of the cosine.
        lr_schedule: pairs [share of the run, share of ``lr``], joined by straight lines, in place of warmup and cosine.
        decay_all: apply the optimizer's weight decay to biases, norms, positions and tokens as well; never to a
            state-space layer's decays, step biases and skips.
        compile: compile the network, in place, when it first runs; parameter names stay as they are.

    Attributes:
        headline: name of the metric, without its split, that the task is judged by, and ``"max"`` or ``"min"``.
    """

    headline: ClassVar[tuple[str, str]] = ("loss", "min")
    network: nn.Module

    def __init__(
        self,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.05),
        warmup_epochs: float = 0.0,
        warmup_lr: float = 1e-5,
        min_lr: float = 1e-6,
        compile: bool = False,
        lr_schedule: list[list[float]] | None = None,
        decay_all: bool = False,
    ) -> None:
        check_schedule(lr_schedule, warmup_epochs)
        check_not_negative(type(self).__name__, warmup_epochs=warmup_epochs, warmup_lr=warmup_lr, min_lr=min_lr)
        super().__init__()
        with warnings.catch_warnings():  # a network given as an object is noticed here and left out right below
            warnings.simplefilter("ignore")
            self.save_hyperparameters(ignore=["compile"])
        self.save_hyperparameters(ignore=["compile", *(k for k, v in self.hparams.items() if not is_plain(v))])
        self.optimizer = optimizer
        self.warmup_epochs, self.warmup_lr, self.min_lr = warmup_epochs, warmup_lr, min_lr
        self.lr_schedule, self.decay_all = lr_schedule, decay_all
        self.network = self.configure_network()
        if compile:
            self.network.compile()

    def configure_network(self) -> nn.Module:
        """Build the network. This is the method to override for an architecture of one's own."""
        raise NotImplementedError(f"{type(self).__name__} has no configure_network")

    @property
    def attached_trainer(self) -> Trainer | None:
        """The trainer that runs this module, or ``None``; ``self.trainer`` raises then."""
        try:
            return self.trainer
        except RuntimeError:
            return None

    def probe_inputs(self, batch: Any) -> Any:
        """Return what ``forward`` takes of a batch: attention is captured on it."""
        return batch

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Build the optimizer on grouped parameters, and a schedule by step.

        Raises:
            StructuredInitError: nothing is trainable, or the run has no end.
        """
        optimizer = build_optimizer(self.optimizer, self, decay_all=self.decay_all)
        total_steps = self.trainer.estimated_stepping_batches
        if not math.isfinite(total_steps):
            raise StructuredInitError(
                "the learning rate needs the end of the run: give trainer.max_epochs or max_steps"
            )
        scheduler = self.configure_schedule(optimizer, int(total_steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def configure_schedule(self, optimizer: Optimizer, total_steps: int) -> LRScheduler:
        """Build the schedule of a run of ``total_steps`` optimizer steps, a function of the step alone."""
        if self.lr_schedule is not None:
            return piecewise_linear(optimizer, total_steps=total_steps, points=self.lr_schedule)
        return warmup_cosine(
            optimizer,
            total_steps=total_steps,
            warmup_steps=round(self.warmup_epochs * self._steps_per_epoch()) if self.warmup_epochs else 0,
            warmup_lr=self.warmup_lr,
            min_lr=self.min_lr,
        )

    def _steps_per_epoch(self) -> int:
        """Return the optimizer steps of one epoch, or an error where the data do not say how many batches they have."""
        if self.trainer.train_dataloader is None:  # not yet looked at where max_steps alone ends the run
            self.trainer.fit_loop.setup_data()
        batches = self.trainer.num_training_batches
        if not math.isfinite(batches):
            raise StructuredInitError(
                f"warmup_epochs={self.warmup_epochs:g} needs the length of an epoch, which the data do not report: "
                "give trainer.limit_train_batches"
            )
        return math.ceil(batches / self.trainer.accumulate_grad_batches)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint that does not fit, before its weights are read.

        ``load_from_checkpoint`` has no trainer and may change arguments on purpose: it is let through.

        Raises:
            StructuredInitError: an argument differs, or the network does.
        """
        if self.attached_trainer is None:
            return
        saved = dict(checkpoint.get(self.CHECKPOINT_HYPER_PARAMS_KEY, {}))
        if self.trainer.state.fn != TrainerFn.FITTING:
            for name in ("block_size", *inspect.signature(Task.__init__).parameters):
                saved.pop(name, None)  # how it was trained; without learned positions any length can be evaluated
        refuse_changed_arguments(saved, self.hparams)
        if self.strict_loading and "state_dict" in checkpoint:  # torch compares those of a sharded one
            refuse_other_weights(checkpoint["state_dict"], self.state_dict())


class NetworkTask(Task):
    """A task whose network is given by its name or as an object, with metrics for each of the three splits.

    A subclass says what a name stands for in :meth:`named_network`, calls :meth:`set_metrics`, and counts the batches
    of validation and test in :meth:`evaluate`.
    """

    def __init__(self, network: str | nn.Module, network_args: dict[str, Any] | None = None, **task: Any) -> None:
        self.network_args = dict(network_args or {})
        self._given_network = (network,)  # in a tuple: a bare module would register before super().__init__
        super().__init__(**task)

    def configure_network(self) -> nn.Module:
        """Return the network that was given, or build the one that its name stands for."""
        (network,) = self._given_network
        if isinstance(network, nn.Module) and self.network_args:  # left over from a network below in the layers
            raise StructuredInitError(
                f"network_args are for a network given by its name, not for {type(network).__name__}: "
                "set network_args anew, as in --model.network_args=null"
            )
        return network if isinstance(network, nn.Module) else self.named_network(network)

    def named_network(self, name: str) -> nn.Module:
        """Build a network by its name, from the sizes and ``network_args``."""
        raise NotImplementedError(f"{type(self).__name__} knows no network '{name}'")

    def setup(self, stage: str) -> None:
        """Refuse data that the network was not built for, naming the first argument that differs, and both values."""
        data = getattr(self.trainer, "datamodule", None)
        for name in ("objective", "num_classes", "vocab_size", "block_size"):
            ours, theirs = getattr(self, name, None), getattr(data, name, None)
            if ours is None or theirs is None or ours == theirs:
                continue
            if name in ("objective", "num_classes"):
                raise StructuredInitError(f"the data has {name} {theirs}, the model {ours}: set {name}")
            if theirs > ours:
                raise StructuredInitError(f"the data has {name} {theirs}, more than the model's {ours}: set {name}")

    def set_metrics(self, metrics: Callable[[str], MetricCollection]) -> None:
        """Keep metrics for each split, made by what is called with ``"train/"``, ``"val/"`` and ``"test/"``."""
        self.train_metrics, self.val_metrics, self.test_metrics = map(metrics, ("train/", "val/", "test/"))

    def evaluate(self, split: str, batch: Any, batch_idx: int) -> None:
        """Count a batch of ``"val"`` or ``"test"``."""
        raise NotImplementedError(f"{type(self).__name__} has no evaluate")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.evaluate("val", batch, batch_idx)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.evaluate("test", batch, batch_idx)

    def known_metrics(self, split: str) -> Any:
        """Return the metrics of a split that are known at the end of an epoch."""
        return getattr(self, f"{split}_metrics")

    def on_train_epoch_end(self) -> None:
        """Log the epoch's metrics; Lightning then computes and resets them."""
        self.log_dict(self.known_metrics("train"))

    def on_validation_epoch_end(self) -> None:
        self.log_dict(self.known_metrics("val"), prog_bar=True)

    def on_test_epoch_end(self) -> None:
        self.log_dict(self.known_metrics("test"))


class ClassifierTask(NetworkTask):
    """A task that tells classes apart: ``accuracy`` and ``loss`` of each split."""

    headline = ("accuracy", "max")
    num_classes: int

    def count_classes(self, **further: Metric) -> None:
        """Keep the metrics; call it after ``super().__init__``."""
        metrics = {
            "accuracy": MulticlassAccuracy(self.num_classes, average="micro", validate_args=False),
            **further,
            "loss": MeanMetric(nan_strategy="disable"),  # any other strategy waits for the device at every step
        }
        self.set_metrics(MetricCollection(metrics, compute_groups=False).clone)

    def count(self, metrics: MetricCollection, logits: Tensor, labels: Tensor, loss: Tensor) -> None:
        """Count a batch. Logging here as well would cost a millisecond a step."""
        for name, metric in metrics.items(keep_base=True, copy_state=False):
            if name == "loss":
                metric.update(loss.detach().expand(len(labels)))  # one per sample: this strategy ignores weights
            else:
                metric.update(logits.detach(), labels)

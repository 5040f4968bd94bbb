"""Stopping a training after the deadline, so that the same command goes on from its checkpoint, exactly."""

from __future__ import annotations

import math
from pathlib import Path

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, Checkpoint, ModelCheckpoint

from callbacks import ExactResume
from comparison.run.time_limit import now
from structured_init.util.errors import StructuredInitError


class Stopped(Exception):
    """A run has ended at the deadline, and goes on from its checkpoint."""


def last_file(trainer: Trainer) -> Path:
    """Return where the latest checkpoint of a run is; every rank asks."""
    return Path(str(trainer.log_dir)) / "checkpoints" / "last.ckpt"


class NeedsValidation(Callback):
    """Refuses a training that ends before it is first validated, where its validation is what decides."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epochs_before = (trainer.check_val_every_n_epoch or 1) - 1
        batches = trainer.val_check_batch + (epochs_before * trainer.num_training_batches if epochs_before else 0)
        if not math.isfinite(batches):  # a loader without a length: nobody knows before it ends
            return
        first = max(1, int(batches) // trainer.accumulate_grad_batches)
        if trainer.enable_validation and -1 < trainer.max_steps < first:
            raise StructuredInitError(
                f"training ends after {trainer.max_steps} steps, and the first validation is after {first}: give "
                f"--trainer.limit_train_batches {max(1, trainer.max_steps // 5)} as well, which makes epochs shorter"
            )


class StopAtDeadline(Checkpoint):
    """Ends a training at the end of the first validation or epoch after the deadline.

    ``Trainer.should_stop`` would capture and close the run as if it were complete. As a ``Checkpoint`` it comes after
    all other callbacks. Where the position in an epoch cannot be saved, a training is ended at the end of an epoch.
    """

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        exact = all(each.exact for each in trainer.callbacks if isinstance(each, ExactResume))
        if not trainer.sanity_checking and exact:
            self._stop_if_late(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop_if_late(trainer)

    def _stop_if_late(self, trainer: Trainer) -> None:
        last_step = -1 < trainer.max_steps <= trainer.global_step
        if last_step or trainer.should_stop:  # it ends by itself, and resumed, Lightning would leave out what follows
            return
        if trainer.strategy.reduce_boolean_decision(now() >= self.deadline, all=False):  # all ranks at the same step
            last = last_file(trainer)
            for callback in trainer.checkpoint_callbacks:
                if isinstance(callback, ModelCheckpoint) and Path(str(callback.dirpath)) == last.parent:
                    callback.last_model_path = str(last)  # else it would take ours for another run's
            trainer.save_checkpoint(last)
            raise Stopped

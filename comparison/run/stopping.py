"""Stopping a training at the deadline, after a step, so that the same command goes on from its checkpoint, exactly.

A callback is enough: `ExactResume` makes a checkpoint exact at the end of any batch. To stop only where a training is
evaluated would need no less code, and a run whose epoch is longer than what is left would lose that epoch.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, Checkpoint, ModelCheckpoint

from callbacks import ExactResume
from callbacks.lightning_private import moment_of
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
    """Ends a training at the deadline, after a step and before the validation that may follow it.

    ``Trainer.should_stop`` would validate, capture and close the run as if it were complete. A validation that is due
    is taken to last as long as the longest before it. As a ``Checkpoint`` it comes after all other callbacks. Where the
    position in an epoch cannot be saved, and an epoch has ended since the run began or went on, no checkpoint is
    written: it goes on from the last one before, exactly.
    """

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self._begin, self._epoch = 0.0, 0
        self._longest = 0.0  # seconds that a validation has taken

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epoch = trainer.current_epoch

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin = time.monotonic()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._longest = max(self._longest, time.monotonic() - self._begin)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if not may_stop(trainer):
            return
        late = now() + (self._longest if moment_of(trainer)["validation_due"] else 0.0) >= self.deadline
        if trainer.strategy.reduce_boolean_decision(late, all=False):  # all ranks stop after the same step
            exact = all(each.exact for each in trainer.callbacks if isinstance(each, ExactResume))
            if exact or trainer.current_epoch == self._epoch:  # else an epoch longer than the limit would never end
                stop(trainer)
            raise Stopped


def may_stop(trainer: Trainer) -> bool:
    """Tell whether a training can be ended for now after the batch that was just trained."""
    moment = moment_of(trainer)
    last_step = -1 < trainer.max_steps <= trainer.global_step  # Lightning would leave out what comes after it
    last_batch = moment["last_batch"] and not moment["validation_due"]  # the epoch ends at once
    return not (last_step or last_batch or moment["accumulating"] or trainer.should_stop)


def stop(trainer: Trainer) -> None:
    """Write the checkpoint that a run goes on from."""
    last = last_file(trainer)
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and Path(str(callback.dirpath)) == last.parent:
            callback.last_model_path = str(last)  # else it would take ours for another run's and call its own -v1
    trainer.save_checkpoint(last)

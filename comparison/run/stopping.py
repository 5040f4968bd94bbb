"""Stopping a training at the deadline, after a step, so that the same command goes on from its checkpoint, exactly.

A callback is enough: `ExactResume` makes a checkpoint exact at the end of any batch. To stop only where a training is
evaluated would need no less code, and a run whose epoch is longer than what is left would lose that epoch.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint

from callbacks.lightning_private import moment_of
from comparison.run.time_limit import deadline


class Stopped(Exception):
    """A run has ended at the deadline and goes on from its checkpoint."""


def last_file(trainer: Trainer) -> Path:
    """Return where the latest checkpoint of a run is; every rank asks."""
    return Path(str(trainer.log_dir)) / "checkpoints" / "last.ckpt"


class StopAtDeadline(Checkpoint):
    """Ends a training at the deadline, after a step and before the validation that may follow it.

    ``Trainer.should_stop`` would validate, capture and close the run as if it were complete. A validation that is due
    is taken to last as long as the longest before it. As a ``Checkpoint`` it comes after all other callbacks.

    Raises:
        Stopped: on every rank, once the checkpoint is written.
    """

    def __init__(self) -> None:
        self._begin = 0.0
        self._longest = 0.0  # seconds that a validation has taken

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin = time.time()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._longest = max(self._longest, time.time() - self._begin)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        moment = moment_of(trainer)
        last_step = -1 < trainer.max_steps <= trainer.global_step  # Lightning would leave out what comes after it
        last_batch = moment["last_batch"] and not moment["validation_due"]  # the epoch ends at once
        if last_step or last_batch or moment["accumulating"] or trainer.should_stop:
            return
        late = time.time() + (self._longest if moment["validation_due"] else 0.0) >= deadline()
        if trainer.strategy.reduce_boolean_decision(late, all=False):  # all ranks stop after the same step
            self._stop(trainer)

    def _stop(self, trainer: Trainer) -> None:
        last = last_file(trainer)
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and Path(str(callback.dirpath)) == last.parent:
                callback.last_model_path = str(last)  # else it would take ours for another run's and call its own -v1
        trainer.save_checkpoint(last)
        raise Stopped

"""Stopping a training at the deadline, after a step, so that the same command goes on from its checkpoint, exactly."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop

from comparison.run.time_limit import deadline

LOGGED = "logged_steps"  # in the state of the epoch loop, where a training was stopped


class Stopped(Exception):
    """A run has ended at the deadline and goes on from its checkpoint."""


def last_file(trainer: Trainer) -> Path:
    """Return where the latest checkpoint of a run is; every rank asks."""
    return Path(str(trainer.log_dir)) / "checkpoints" / "last.ckpt"


def logged_steps(checkpoint: dict[str, Any]) -> int:
    """Return from which step on a run that goes on from a checkpoint logs."""
    state = checkpoint["loops"]["fit_loop"]["epoch_loop.state_dict"]
    return state.get(LOGGED, state["_batches_that_stepped"])


class StoppingEpochLoop(_TrainingEpochLoop):
    """Ends a training at the deadline, after a step and before the validation that may follow it.

    ``Trainer.should_stop`` would validate, capture and close the run as if it were complete.

    Raises:
        Stopped: once the checkpoint is written.
    """

    _longest = 0.0  # seconds that a validation has taken
    _stopping = False

    def on_advance_end(self, data_fetcher: Any) -> None:
        validates = self._should_check_val_fx(data_fetcher) and not self._skip_next_val
        begin = time.time()
        if self._can_stop(validates) and self._agree(begin + (self._longest if validates else 0.0) >= deadline()):
            self._stop()
        super().on_advance_end(data_fetcher)
        if validates:
            self._longest = max(self._longest, time.time() - begin)

    def on_save_checkpoint(self) -> dict[str, Any]:
        state = super().on_save_checkpoint()
        return {**state, LOGGED: self._batches_that_stepped + 1} if self._stopping else state

    def _can_stop(self, validates: bool) -> bool:
        """Tell whether a step has just been made, and the training would go on from here as if it had not stopped."""
        again = self._skip_next_val or (self.restarting and self.val_loop.restarted_mid_evaluation)  # without a step
        last_step = -1 < self.max_steps <= self.global_step  # Lightning would leave out what comes after it
        last_batch = self._num_ready_batches_reached() and not validates  # with limit_train_batches it trains one more
        return not (again or last_step or last_batch or self._should_accumulate() or self.trainer.should_stop)

    def _agree(self, decision: bool) -> bool:
        """Let all ranks stop after the same step."""
        return self.trainer.strategy.reduce_boolean_decision(decision, all=False)

    def _stop(self) -> None:
        trainer, last, self._stopping = self.trainer, last_file(self.trainer), True
        for part in (self.batch_progress.total, self.batch_progress.current):
            part.completed -= 1  # as at the end of a batch, from where ExactResume goes on with whatever is due
        for logger in trainer.loggers:
            logger.save()
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and Path(str(callback.dirpath)) == last.parent:
                callback.last_model_path = str(last)  # else it would take ours for another run's and call its own -v1
        trainer.save_checkpoint(last)
        raise Stopped

"""The time that a command may take: its trainings stop in time, and the same command goes on later, exactly.

The deadline is given to the processes that train beside their run, so that it is part of no run's settings.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint

from callbacks import ExactResume

LEFT = 75  # the exit code where runs are left: EX_TEMPFAIL of sysexits.h, "try again later"


@dataclass(frozen=True)
class TimeLimit:
    """What a command may take."""

    begin: float  # of the command, in seconds since 1970
    seconds: float = math.inf  # that it may take; infinite without a limit

    @property
    def deadline(self) -> float:
        """When runs stop and no further one starts: a tenth, at most half a minute, is kept for what follows."""
        return self.begin + self.seconds - self._kept

    @property
    def end(self) -> float:
        """When what has not stopped is ended, so that the report comes in time: a third of what is kept is for it."""
        return self.begin + self.seconds - self._kept / 3

    @property
    def _kept(self) -> float:
        return min(30.0, self.seconds / 10)


UNLIMITED = TimeLimit(0.0)


class Stopped(Exception):
    """A run has ended at the deadline, and goes on from its checkpoint."""


def last_file(trainer: Trainer) -> Path:
    """Return where the latest checkpoint of a run is; every rank asks."""
    return Path(str(trainer.log_dir)) / "checkpoints" / "last.ckpt"


class StopAtDeadline(Checkpoint):
    """Ends a training at the end of the first validation or epoch after the deadline.

    ``Trainer.should_stop`` would capture and close the run as if it were complete. As a ``Checkpoint`` it comes after
    all other callbacks. Where the position in an epoch cannot be saved, a training is ended at the end of an epoch.
    """

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        exact = all(each.exact for each in trainer.callbacks if isinstance(each, ExactResume))
        if exact and not trainer.sanity_checking:
            self._stop_if_late(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop_if_late(trainer)

    def _stop_if_late(self, trainer: Trainer) -> None:
        last_step = -1 < trainer.max_steps <= trainer.global_step
        if last_step or trainer.should_stop:  # it ends by itself, and resumed, Lightning would leave out what follows
            return
        is_late = time.time() >= self.deadline
        if not trainer.strategy.reduce_boolean_decision(is_late, all=False):  # all ranks stop at the same step
            return
        last = last_file(trainer)
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and Path(str(callback.dirpath)) == last.parent:
                callback.last_model_path = str(last)  # else it would take ours for another run's
        trainer.save_checkpoint(last)
        raise Stopped

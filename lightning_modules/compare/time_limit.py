"""The time that a comparison may take: it ends in time, and the same command goes on later, exactly.

A moment, the deadline, travels to the processes that train in their environment, so that it is part of no run's
settings. A training looks at the clock after each step.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop

DEADLINE = "STRUCTURED_INIT_DEADLINE"  # the variable: seconds since 1970 by the clock of the command's machine
LEFT = 75  # the exit code where runs are left: EX_TEMPFAIL of sysexits.h, "try again later"
LOGGED = "logged_steps"  # in the state of the epoch loop, where a training was stopped
UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


class Stopped(Exception):
    """A run has ended at the deadline and goes on from its checkpoint."""


@dataclass(frozen=True)
class TimeLimit:
    """What a command may take, and how it is shared out.

    Attributes:
        begin: of the command, in seconds since 1970.
        seconds: that it may take; infinite without a limit.
    """

    begin: float
    seconds: float = math.inf

    @property
    def deadline(self) -> float:
        """When runs stop and no further one starts: a tenth, at most half a minute, is kept for what follows."""
        return self.begin + self.seconds - self._kept

    @property
    def end(self) -> float:
        """When what has not stopped is ended, so that the report comes in time: a third of what is kept is for it."""
        return self.begin + self.seconds - self._kept / 3

    @property
    def environment(self) -> dict[str, str]:
        """The variable for the processes that train."""
        return {DEADLINE: repr(self.deadline)} if math.isfinite(self.seconds) else {}

    @property
    def _kept(self) -> float:
        return min(30.0, self.seconds / 10)


UNLIMITED = TimeLimit(0.0)


def parse_duration(text: str) -> float:
    """Return the seconds of ``55m``, ``2h``, ``1h30m``, ``01:30:00`` or ``600``.

    Raises:
        argparse.ArgumentTypeError: anything else, or no time at all.
    """
    units = re.fullmatch(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", text)
    clock = re.fullmatch(r"(\d+):([0-5]\d):([0-5]\d)", text)
    if re.fullmatch(r"\d+(\.\d+)?", text):
        seconds = float(text)
    elif clock:
        seconds = sum(int(part) * unit for part, unit in zip(clock.groups(), (3600, 60, 1), strict=True))
    else:
        parts = units.groups() if units else ()
        seconds = sum(int(part) * unit for part, unit in zip(parts, UNITS.values(), strict=False) if part)
    if not seconds:
        raise argparse.ArgumentTypeError(f"cannot read '{text}': write 55m, 2h, 1h30m, 01:30:00 or a number of seconds")
    return float(seconds)


def command_began() -> float:
    """Return when this command began, in seconds since 1970: before it imported its libraries, if it is the shell's."""
    return time.time() - (_age_of_process() if sys.argv[1:2] == ["compare"] else 0.0)


def _age_of_process() -> float:
    try:
        words = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(words[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):  # not Linux: at least the time that it has computed
        return time.process_time()


def deadline() -> float:
    """Return when this process is to stop training, in seconds since 1970; infinite without a limit."""
    return float(os.environ.get(DEADLINE, math.inf))


def reached() -> bool:
    """Tell whether the deadline has passed."""
    return time.time() >= deadline()


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

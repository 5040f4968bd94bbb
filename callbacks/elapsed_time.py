"""ElapsedTime: how long a run has trained, beside each validation, so that curves can be drawn by time."""

from __future__ import annotations

import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn


class ElapsedTime(Callback):
    """Log ``seconds``, the wall time since training started, with every validation of a fit.

    The time is part of the checkpoint: that of a resumed run goes on where its checkpoint was made.

    Attributes:
        seconds: until now, or until the training ended.
    """

    def __init__(self) -> None:
        self._before = 0.0
        self._begin: float | None = None

    @property
    def seconds(self) -> float:
        return self._before + (0.0 if self._begin is None else time.perf_counter() - self._begin)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.ckpt_path is None:  # a second fit of one callback is another run
            self._before = 0.0
        self._begin = time.perf_counter()

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            pl_module.log("seconds", torch.tensor(self.seconds, dtype=torch.float32))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._before, self._begin = self.seconds, None

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._before = state_dict["seconds"]

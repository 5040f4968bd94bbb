"""ElapsedTime: how long a run was initialized and trained, beside each validation, for curves by time."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from callbacks.init import InitCallback


class ElapsedTime(Callback):
    """Log ``seconds``, the wall time of initialization and training, with every validation of a fit.

    What :class:`InitCallback` took counts, since some initializations train; building the model and reading the data
    before does not. The time is part of the checkpoint: that of a resumed run goes on where its checkpoint was made.

    Attributes:
        seconds: until now, or until the training ended.
        initialization: how many of them the initialization took.
        earlier: how many of them were before the checkpoint that this training goes on from.
    """

    def __init__(self) -> None:
        self.initialization = 0.0
        self.earlier = 0.0
        self._before = 0.0
        self._begin: float | None = None

    @property
    def seconds(self) -> float:
        return self._before + (0.0 if self._begin is None else time.perf_counter() - self._begin)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.ckpt_path is None:  # a second fit of one callback is another run
            initializations = [each for each in trainer.callbacks if isinstance(each, InitCallback)]
            self._before = self.initialization = math.fsum(each.seconds for each in initializations)
            self.earlier = 0.0
        self._begin = time.perf_counter()

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            pl_module.log("seconds", torch.tensor(self.seconds, dtype=torch.float32))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._before, self._begin = self.seconds, None

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "initialization": self.initialization}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._before = self.earlier = state_dict["seconds"]
        self.initialization = state_dict["initialization"]

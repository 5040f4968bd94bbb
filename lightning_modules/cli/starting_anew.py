"""What ``fit --ckpt_path last`` says where there is nothing to resume: that the training starts anew."""

from __future__ import annotations

import sys
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer


class StartingAnew(Callback):
    """Say in one line that ``last`` has found no checkpoint; with one it says nothing.

    Lightning goes on without one, so that a job can be submitted with the same command the first time and later; its
    own warning is one among many, and names no file.

    Args:
        newest: checkpoint of another run, which may have been meant; None where there is none.
    """

    def __init__(self, newest: Path | None = None) -> None:
        self.newest = newest

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at what Lightning has made of ``last``."""
        if trainer.ckpt_path is None and trainer.is_global_zero:
            meant = f"; to resume another run, give its file, such as '{self.newest}'" if self.newest else ""
            print(
                "structured-init: --ckpt_path last: there is no checkpoint of this run to resume from: the training"
                f" starts anew{meant}",
                file=sys.stderr,
            )

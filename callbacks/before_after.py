"""What a callback needs that looks at a model before and after training: when to look, and what a checkpoint keeps."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class BeforeAndAfter(Callback):
    """Calls :meth:`capture` when training starts at step 0, and when it ends.

    Args:
        enabled: false does nothing at all.

    Attributes:
        before: path of what was written before training; it travels in the checkpoint. None where there is none.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self.before: str | None = None

    def capture(self, phase: str, trainer: Trainer, pl_module: LightningModule) -> str | None:
        """Look at the model and write what was seen, on every rank alike.

        Args:
            phase: ``"before"`` or ``"after"``.
            trainer: of the run.
            pl_module: the model.

        Returns:
            The path that was written; None where there is nothing to write.
        """
        raise NotImplementedError

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at the untrained model, in a run that starts at step 0 and does not know it already."""
        resumed = trainer.ckpt_path is not None and self.before is not None
        if self.enabled and trainer.global_step == 0 and not resumed:
            self.before = self.capture("before", trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at the end."""
        if self.enabled:
            self.capture("after", trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """Return where ``before`` is."""
        return {"before": self.before}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take ``before`` of the run that is resumed."""
        self.before = state_dict["before"]

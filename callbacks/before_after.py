"""What a callback needs that looks at a model before and after training: when to look, and what a checkpoint keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from callbacks.attention_map import is_sharded
from callbacks.diagnostics import is_fatal, note_missing
from structured_init.errors import StructuredInitError

Seen = TypeVar("Seen")


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
        """Look at the model before training, in a run that starts at step 0 and does not know it already."""
        resumed = trainer.ckpt_path is not None and self.before is not None
        if self.enabled and trainer.global_step == 0 and not resumed:
            self.before = self.capture("before", trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at the model after training."""
        if self.enabled:
            self.capture("after", trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """Return where ``before`` is."""
        return {"before": self.before}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take ``before`` of the run that is resumed."""
        self.before = state_dict["before"]


def write_on_rank_zero(
    trainer: Trainer, what: str, phase: str, look: Callable[[], Seen], write: Callable[[Seen], str | None]
) -> str | None:
    """Look where the weights are, let rank zero write, and tell every rank what came of it.

    A fast development run writes nothing. What goes wrong after training is a warning and an entry in
    ``missing.json``: no diagnosis ends a training.

    Args:
        trainer: of the run.
        what: is written, such as ``"filters"``.
        phase: ``"before"`` or ``"after"``.
        look: looks at the model; where no rank holds all weights, every rank does. It raises ``StructuredInitError``
            where the model or its data have nothing of the kind, which is a line and no failure.
        write: is given what was seen, writes the files and returns their path; None where there is nothing to write.

    Raises:
        StructuredInitError: on every rank, where rank zero could not write before training: else the others would wait
            for it in their first step.
    """
    path, absent, failure = None, None, None
    try:
        if trainer.is_global_zero or is_sharded(trainer):
            seen = look()
    except StructuredInitError as error:
        absent = error
    except Exception as error:
        failure = error
    try:
        if trainer.is_global_zero and absent is None and failure is None and not trainer.fast_dev_run:
            path = write(seen)
    except Exception as error:
        failure = error
    path, absent, failure = trainer.strategy.broadcast((path, absent, failure))
    if is_fatal(failure, phase):
        raise failure
    if failure is not None:
        note_missing(trainer, what, phase, failure)
    elif absent is not None:
        rank_zero_info(f"{what}: {absent}")
    return path

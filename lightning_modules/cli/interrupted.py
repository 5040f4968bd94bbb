"""What a training that Ctrl-C has ended says: the command that goes on."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


def resuming(trainer: Trainer, args: Sequence[str]) -> str:
    """Return one line with the command that resumes a training, or says that there is nothing yet to resume from.

    Args:
        trainer: of the training that was ended.
        args: its command line.
    """
    from lightning.pytorch.callbacks import ModelCheckpoint

    saved = [each.last_model_path or each.best_model_path for each in trainer.checkpoint_callbacks
             if isinstance(each, ModelCheckpoint)]  # fmt: skip
    last = next((os.path.relpath(path) for path in saved if path), None)
    if last is None:
        return "structured-init: stopped before the first checkpoint: the same command begins again"
    command = shlex.join(["structured-init", *without(args, "--ckpt_path"), "--ckpt_path", last])
    return f"structured-init: stopped; this goes on from the last checkpoint: {command}"


def without(args: Sequence[str], option: str) -> list[str]:
    """Return a command line without an option and its value."""
    kept, value_follows = [], False
    for argument in args:
        if not value_follows and argument != option and not argument.startswith(f"{option}="):
            kept.append(argument)
        value_follows = argument == option
    return kept

"""A diagnosis never ends a training: what could not be looked at is noted, and the training goes on."""

from __future__ import annotations

import json
from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn

from structured_init.errors import StructuredInitError, one_line
from structured_init.files import write_json

MISSING_FILE = "missing.json"


def note_missing(trainer: Trainer, what: str, phase: str, error: Exception) -> None:
    """Warn in one line, and write it into ``missing.json`` of the log folder; every rank calls.

    Args:
        trainer: of the run.
        what: was to be looked at, such as ``"attention"``.
        phase: when, such as ``"after"``.
        error: why it could not be.
    """
    folder = Path(trainer.log_dir or trainer.default_root_dir)  # a collective: every rank asks
    kind = "" if isinstance(error, StructuredInitError) else f"{type(error).__name__}: "
    reason = (kind + one_line(error))[:500]
    rank_zero_warn(f"{what}: nothing was recorded at '{phase}': {reason}")
    if not trainer.is_global_zero or trainer.fast_dev_run:
        return
    file = folder / MISSING_FILE
    try:
        known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        write_json(file, {**known, what: {**known.get(what, {}), phase: reason}})
    except (StructuredInitError, OSError, ValueError):  # the same full disk, perhaps: the warning has said it
        return


def is_fatal(error: Exception | None, phase: str) -> bool:
    """Tell whether an error ends the run: a mistake that shows before training does, nothing that comes later."""
    return phase == "before" and isinstance(error, StructuredInitError)

"""What Lightning says about arguments in errors of its own, told apart from bugs; and what it says badly, said here."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import Any

import jsonargparse
import lightning
from lightning.fabric.accelerators import ACCELERATOR_REGISTRY
from lightning.pytorch.strategies import StrategyRegistry
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from structured_init.errors import StructuredInitError, nearest, one_line

ANSWERS = (MisconfigurationException, ValueError, TypeError, RuntimeError, ImportError)
# An error that passes through nothing but these concerns what they were given; the user's own code lies elsewhere.
LIBRARIES = tuple(str(Path(module.__file__).parent) for module in (lightning, jsonargparse))
OURS = tuple(
    str(Path(__file__).parents[2] / folder)
    for folder in (
        "lightning_modules/cli",
        "lightning_modules/tasks/task.py",
        "callbacks/lightning_private.py",
        "comparison",
    )
)


def answer(error: Exception) -> StructuredInitError | None:
    """Return Lightning's own complaint about its arguments as one line; ``None`` for a bug, the user's or another's.

    Args:
        error: as it was caught. A complaint is one that Lightning raises by itself, reached through its own code alone.
    """
    if isinstance(error, MisconfigurationException):
        return StructuredInitError(one_line(error))
    if not isinstance(error, ANSWERS) or not _raised_by_a_library(error):
        return None
    chain: BaseException | None = error
    while chain is not None:
        if not _within_libraries(chain):
            return None
        chain = chain.__cause__
    return StructuredInitError(one_line(error))


def _raised_by_a_library(error: BaseException) -> bool:
    """Tell whether the innermost line is a ``raise`` of a library, not an operation that failed."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(LIBRARIES) and (frames[-1].line or "").startswith("raise ")


def _within_libraries(error: BaseException) -> bool:
    """Tell whether an error passed through no code but the libraries' and this package's; who called it is left out."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    first = next((i for i, file in enumerate(files) if file.startswith(OURS)), 0)
    return all(file.startswith(LIBRARIES + OURS) for file in files[first:])


def check_trainer(trainer: Any) -> None:
    """Refuse values of the section ``trainer`` that Lightning answers badly, late, or not at all.

    Args:
        trainer: the section.

    Raises:
        StructuredInitError: names the key, its value, and the nearest right one.
    """
    for key, known in (
        ("accelerator", ["auto", "gpu", *ACCELERATOR_REGISTRY.available_accelerators()]),
        ("strategy", ["auto", *StrategyRegistry.available_strategies()]),
    ):
        given = trainer.get(key)
        if isinstance(given, str) and given not in known:
            raise StructuredInitError(f"trainer.{key}: unknown {key} '{given}': {nearest(given, known)}")
    _check_devices(trainer.get("devices"), trainer.get("accelerator"))
    for key, least in LEAST.items():
        given = trainer.get(key)
        if given is not None and given < least:
            raise StructuredInitError(f"trainer.{key} is {given}: it must be at least {least}")
    if (trainer.get("min_epochs") or 0) > (trainer.get("max_epochs") or 0) >= 1:
        raise StructuredInitError(
            f"trainer.min_epochs is {trainer.min_epochs}, more than trainer.max_epochs, {trainer.max_epochs}"
        )


LEAST = {
    "accumulate_grad_batches": 1,
    "check_val_every_n_epoch": 1,
    "gradient_clip_val": 0,
    "log_every_n_steps": 0,
    "num_nodes": 1,
}


def _check_devices(devices: Any, accelerator: Any) -> None:
    """Refuse what is no number or list of devices, and more processes on the processor than the machine could bear."""
    if isinstance(devices, str) and devices != "auto":
        parts = devices.strip("[]").split(",")
        if not all(part.strip().lstrip("-").isdecimal() for part in parts):
            raise StructuredInitError(f"trainer.devices is '{devices}': give a number, a list such as [0,1], or auto")
        devices = int(devices) if len(parts) == 1 and "[" not in devices else None
    if not isinstance(devices, int):
        return
    if devices == 0 or devices < -1:
        raise StructuredInitError(f"trainer.devices is {devices}: it must be at least 1, or -1 for all GPUs")
    cores = os.cpu_count() or 1
    if accelerator == "cpu" and devices > max(64, 2 * cores):
        raise StructuredInitError(
            f"trainer.devices is {devices}: on a CPU it is the number of processes, and this machine has {cores} cores"
        )

"""A run in the process that trains it: what it prints goes into its log, and why it failed stands beside it."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator

import torch
from filelock import FileLock

from comparison.run.run import Run, train
from structured_init.errors import StructuredInitError, one_line
from structured_init.files import write_json


def execute(run: Run) -> str | None:
    """Train a run with everything it prints in its log; return why it failed, in one line; ``None`` if it did not."""
    try:
        with _output_to(run):
            return _execute(run)
    except OSError as error:  # of the log: the folder cannot be written to
        return note_failure(run, f"cannot write '{error.filename or run.beside('log')}': {error.strerror or error}")


def _execute(run: Run) -> str | None:
    torch.set_num_threads(run.settings["threads"])
    try:
        train(run)
    except StructuredInitError as error:
        return note_failure(run, one_line(error))
    except Exception as error:  # a bug, or what a library raised: it must not stop the other runs
        traceback.print_exc()
        message = one_line(error)
        reason = type(error).__name__ + (f": {message}" if message else "")
        return note_failure(run, reason[:500], traceback.format_exc())
    run.failure_file.unlink(missing_ok=True)
    return None


def note_failure(run: Run, reason: str, trace: str | None = None) -> str:
    """Write beside the run why it failed, where the disk has room for it, and return it."""
    with contextlib.suppress(StructuredInitError):
        write_json(run.failure_file, {"reason": reason, "traceback": trace})
    return reason


@contextlib.contextmanager
def _output_to(run: Run) -> Iterator[None]:
    """Send what this process and its children print to the run's log, which only one process at a time can hold."""
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    # A worker of a killed comparison may still be about to end.
    with (
        FileLock(run.folder.with_name(f".{run.folder.name}.lock")),
        run.beside("log").open("a", encoding="utf-8") as log,
    ):
        sys.stdout.flush()
        sys.stderr.flush()
        kept = [(stream, os.dup(stream)) for stream in (1, 2)]
        try:
            for stream, _ in kept:
                os.dup2(log.fileno(), stream)
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for stream, copy in kept:
                os.dup2(copy, stream)
                os.close(copy)

"""One comparison at a time in a folder."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from structured_init.errors import StructuredInitError
from structured_init.files import write_text


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other comparisons out of a folder. The system unlocks it when this process ends, however it ends.

    Raises:
        StructuredInitError: another process has locked it, or it cannot be written to.
    """
    holder = folder / ".lock.holder"  # not in the lock itself, which every process that tries it empties
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock", timeout=0)
        lock.acquire()
    except Timeout:
        who = f" ({holder.read_text(encoding='utf-8').strip()})" if holder.is_file() else ""
        raise StructuredInitError(f"'{folder}' is in use by another comparison{who}") from None
    except OSError as error:
        raise StructuredInitError(f"cannot write to '{folder}': {error.strerror}") from None
    with lock:
        write_text(holder, f"process {os.getpid()} on {socket.gethostname()}\n")
        try:
            yield
        finally:
            holder.unlink(missing_ok=True)
            lock.release()

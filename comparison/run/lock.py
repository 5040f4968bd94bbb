"""One comparison at a time in a folder."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from structured_init.errors import StructuredInitError


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a folder. The system lets go of it when this process ends, however it ends: no lock is ever stale.

    Raises:
        StructuredInitError: another process holds it, or it cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise StructuredInitError(f"cannot write to '{folder}': {error.strerror}") from None
    with file:
        if not _lock(file.fileno()):
            file.seek(0)
            raise StructuredInitError(f"'{folder}' is in use by another comparison ({file.read().strip()})")
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


def _lock(descriptor: int) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True

"""Writing files so that nothing already written is ever lost or half replaced."""

from __future__ import annotations

import glob
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from structured_init.errors import StructuredInitError


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside ``path`` and rename it into place when the block ends without an error.

    What a process that was killed has left of the same file is removed.

    Args:
        path: the final name; its folder is created.

    Yields:
        The temporary path to write to. It keeps the suffix of ``path``, which some writers look at.

    Raises:
        StructuredInitError: the folder cannot be created or written to.
    """
    final = Path(path)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{final.stem}-{socket.gethostname()[:20]}_"
        _remove_left(final, prefix)
        handle, name = tempfile.mkstemp(dir=final.parent, prefix=f"{prefix}{os.getpid()}_", suffix=final.suffix)
    except OSError as error:
        raise StructuredInitError(f"cannot write '{final}': {error.strerror or error}") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())  # else a machine that stops could keep the name and lose what it stands for
        temporary.replace(final)
    except OSError as error:
        raise StructuredInitError(f"cannot write '{final}': {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _remove_left(final: Path, prefix: str) -> None:
    """Remove temporary files of a path whose process, of this machine, is no more."""
    if os.name != "posix":  # elsewhere the question would end the process
        return
    for left in final.parent.glob(f"{glob.escape(prefix)}*{glob.escape(final.suffix)}"):
        process = left.name.removeprefix(prefix).partition("_")[0]
        try:
            os.kill(int(process), 0)
        except (ProcessLookupError, ValueError, OverflowError):
            left.unlink(missing_ok=True)
        except PermissionError:  # it lives, and is another user's
            continue


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text in UTF-8, under its final name only when it is complete.

    Raises:
        StructuredInitError: it cannot be written there.
    """
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write plain values as JSON; see :func:`write_text`."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")

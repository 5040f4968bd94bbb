"""Writing files so that nothing already written is ever lost or half replaced, and reading no more than fits."""

from __future__ import annotations

import glob
import json
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from structured_init.errors import StructuredInitError

LARGEST = 128 * 2**20  # bytes of a file of text that is read at once


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


def read_text(path: str | os.PathLike[str]) -> str:
    """Return a text in UTF-8.

    Raises:
        StructuredInitError: it cannot be read, is no ordinary file, or is longer than ``LARGEST``.
    """
    try:
        refuse_endless(path)
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise StructuredInitError(f"cannot read '{path}': {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise StructuredInitError(f"cannot read '{path}': {error}") from error


def refuse_endless(path: str | os.PathLike[str]) -> None:
    """Refuse a device, a pipe, and what is longer than ``LARGEST``, such as a file of zeros that takes no room.

    Raises:
        StructuredInitError: names it.
        OSError: it does not exist, or cannot be reached.
    """
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise StructuredInitError(f"cannot read '{path}': it is no ordinary file")
    if found.st_size > LARGEST:
        raise StructuredInitError(f"cannot read '{path}': it has {found.st_size:,} bytes, more than {LARGEST:,}")

"""Reading what ``torch.save`` wrote: no code in it is run, and it takes no more memory than the file is long."""

from __future__ import annotations

import os
import re
import zipfile
from typing import Any

import torch

from structured_init.errors import StructuredInitError

START = b"PK\x03\x04"  # of an archive; without it the file is of torch's older format, which has no entries to expand


class DamagedFileError(StructuredInitError):
    """A file that was cut off, or changed since it was written; nothing else can be read from it either."""


def load_saved(path: str | os.PathLike[str], what: str, **arguments: Any) -> Any:
    """Return what ``torch.save`` wrote into a file, on the CPU.

    Args:
        path: of the file.
        what: the start of messages, such as ``cannot read 'weights.pt'``.
        arguments: of ``torch.load``; ``weights_only`` is true unless it is given.

    Raises:
        StructuredInitError: it holds Python objects, or its entries expand to more than the file.
        DamagedFileError: it is damaged, or no such file at all.
    """
    try:
        _check_archive(path, what)
        return torch.load(path, **{"map_location": "cpu", "weights_only": True, **arguments})
    except StructuredInitError:
        raise
    except Exception as error:  # torch raises a dozen kinds, one per damaged byte
        if "weights_only" not in str(error):
            raise DamagedFileError(f"{what}: it is damaged, or it is not a checkpoint") from error
        found = re.search(r"GLOBAL (\S+)", str(error))
        reason = "it holds Python objects, which are never run" + (f" ({found[1]})" if found else "")
        raise StructuredInitError(f"{what}: {reason}, or it is not a checkpoint") from error


def is_intact(path: str | os.PathLike[str]) -> bool:
    """Tell whether every byte of an archive is as it was written, by its checksums; all of it is read."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False


def _check_archive(path: str | os.PathLike[str], what: str) -> None:
    """Look at the table of an archive before any entry is read: ``torch.save`` compresses nothing."""
    with open(path, "rb") as file:
        if file.read(len(START)) != START:
            return
    with zipfile.ZipFile(path) as archive:
        here, expanded = os.path.getsize(path), sum(entry.file_size for entry in archive.infolist())
        if expanded > here:
            raise StructuredInitError(
                f"{what}: its {here:,} bytes expand to {expanded:,}, which no checkpoint does: they are not read"
            )
        for entry in archive.infolist():
            if entry.filename.endswith(".pkl"):  # where a changed byte would look like a foreign object
                archive.read(entry)

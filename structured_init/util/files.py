"""Files: written whole or not at all, read without running code, and signed by what made them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import subprocess
import uuid
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structured_init
from structured_init.util.errors import StructuredInitError

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 128 * 2**20  # bytes of a file of text that is read at once
ROOT = Path(structured_init.__file__).resolve().parents[1]
CODE = ("structured_init", "callbacks", "lightning_modules", "comparison", "configs")
DIGITS = 12


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` and rename it into place when the block ends without an error.

    It keeps the suffix of ``path``, which some writers look at. The folder is created.

    Raises:
        StructuredInitError: the folder cannot be created or written to.
    """
    final = Path(path)
    temporary = final.with_name(f".{final.stem}-{uuid.uuid4().hex[:8]}{final.suffix}")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
        yield temporary
        temporary.replace(final)
    except OSError as error:
        raise StructuredInitError(f"cannot write '{final}': {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text in UTF-8, under its final name only when it is complete; errors as for :func:`replacing`."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write plain values as JSON; see :func:`write_text`."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_text(path: str | os.PathLike[str]) -> str:
    """Return a text in UTF-8; refuse what cannot be read, is no ordinary file, or is longer than ``LARGEST``."""
    try:
        refuse_endless(path)
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise StructuredInitError(f"cannot read '{path}': {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise StructuredInitError(f"cannot read '{path}': {error}") from error


def refuse_endless(path: str | os.PathLike[str]) -> None:
    """Refuse a device, a pipe, and what is longer than ``LARGEST``, such as a file of zeros that takes no room."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise StructuredInitError(f"cannot read '{path}': it is no ordinary file")
    if found.st_size > LARGEST:
        raise StructuredInitError(f"cannot read '{path}': it has {found.st_size:,} bytes, more than {LARGEST:,}")


class DamagedFileError(StructuredInitError):
    """A file that was cut off, or changed since it was written; nothing else can be read from it either."""


def load_saved(path: str | os.PathLike[str], what: str, way_out: str = "", **arguments: Any) -> Any:
    """Return what ``torch.save`` wrote into a file, on the CPU, without running code in it.

    ``what`` is the start of messages, such as ``cannot read 'weights.pt'``, ``way_out`` the end where it holds Python
    objects; arguments are those of ``torch.load``.

    Raises:
        StructuredInitError: it holds Python objects.
        DamagedFileError: it is damaged, or no such file at all.
    """
    import torch  # reading and writing texts needs none

    try:
        return torch.load(path, **{"map_location": "cpu", "weights_only": True, **arguments})
    except Exception as error:  # torch raises a dozen kinds, one per damaged byte
        if foreign := re.search(r"GLOBAL (\S+)", str(error)):
            reason = f"it holds Python objects, which are never run ({foreign[1]})"
            raise StructuredInitError(f"{what}: {reason}, or it is not a checkpoint{way_out}") from error
        raise DamagedFileError(f"{what}: it is damaged, or it is not a checkpoint") from error


def read_tensors(path: str | os.PathLike[str], names: Iterable[str] = (), before: str = "") -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, which keeps no order: those of ``names`` in theirs, else all by depth.

    An error begins with ``before``.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from structured_init.util.names import by_depth

    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise StructuredInitError(f"{before}cannot read '{path}': {error}") from error
    return {name: tensors[name] for name in names or by_depth(sorted(tensors)) if name in tensors}


def is_intact(path: str | os.PathLike[str]) -> bool:
    """Tell whether every byte of an archive is as it was written, by its checksums; all of it is read."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False


@lru_cache
def made_by() -> str:
    """Return what is running, such as ``0.1.0, commit 0123456789ab``; of an installed release its version alone.

    A clone whose code differs from its commit says so, with a digest of the difference; what git ignores is no part
    of it.
    """
    version = structured_init.__version__
    if not (ROOT / ".git").exists():
        return version
    try:
        commit = _git("rev-parse", "HEAD").decode().strip()[:DIGITS]
        changed = _git("status", "--porcelain", "--", *CODE)
        difference = _git("diff", "HEAD", "--", *CODE) + changed
    except (OSError, subprocess.CalledProcessError):  # there is no git, or it does not trust the folder's owner
        return version
    digest = f", changed ({hashlib.sha256(difference).hexdigest()[:DIGITS]})" if changed else ""
    return f"{version}, commit {commit}{digest}"


def _git(*words: str) -> bytes:
    command = ["git", "--no-optional-locks", "-C", str(ROOT), *words]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # of a hook that runs us
    return subprocess.run(command, capture_output=True, check=True, env=alone).stdout

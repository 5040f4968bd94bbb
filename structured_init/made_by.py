"""Which code made a file: the version, and the commit of a clone or the contents of an installed wheel."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
from functools import lru_cache
from pathlib import Path

import structured_init

ROOT = Path(structured_init.__file__).resolve().parents[1]
CODE = ("structured_init", "callbacks", "lightning_modules", "comparison", "configs")
DIGITS = 12


@lru_cache
def made_by() -> str:
    """Return what is running, such as ``0.1.0, commit 0123456789ab`` or ``0.1.0, wheel 0123456789ab``.

    A clone whose code differs from its commit says so, with a digest of the difference; what git ignores is no part
    of it. A wheel has the digest of what its ``RECORD`` says of the code, the same on every machine.
    """
    found = (_commit() if (ROOT / ".git").exists() else None) or _wheel()
    return ", ".join(filter(None, [structured_init.__version__, found]))


def _commit() -> str | None:
    try:
        commit = _git("rev-parse", "HEAD").decode().strip()[:DIGITS]
        changed = _git("status", "--porcelain", "--", *CODE)
        difference = _git("diff", "HEAD", "--", *CODE) + changed if changed else b""
    except (OSError, subprocess.CalledProcessError):  # there is no git, or it does not trust the folder's owner
        return None
    return f"commit {commit}" + (f", changed ({_digest(difference)})" if changed else "")


def _git(*words: str) -> bytes:
    command = ["git", "--no-optional-locks", "-C", str(ROOT), *words]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # of a hook that runs us
    return subprocess.run(command, capture_output=True, check=True, env=alone).stdout


def _wheel() -> str | None:
    try:
        files = importlib.metadata.distribution("structured-init").files or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    ours = (file for file in files if file.parts[0] in CODE and file.hash)
    lines = sorted(f"{file.as_posix()} {file.hash.value}" for file in ours)
    whole = any(line.startswith("structured_init/") for line in lines)  # not of a link to an unpacked archive
    return f"wheel {_digest(chr(10).join(lines).encode())}" if whole else None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGITS]

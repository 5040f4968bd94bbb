"""Ctrl-C while a command imports and checks, and from when on it writes; nothing is imported for it."""

from __future__ import annotations

import os
import signal
from typing import Any


def begin_writing() -> None:
    """Let Ctrl-C raise ``KeyboardInterrupt`` from here on, so that what is being written is put in order."""
    if signal.getsignal(signal.SIGINT) is stop_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def stop_at_once(*_: Any) -> None:
    """End the command: while it imports and checks, an exception could be lost in what a library catches."""
    os.write(2, b"structured-init: stopped before anything was written\n")
    os._exit(130)

"""The memory of a process: its size, and malloc set up so that its dealings with the system are in nobody's time.

glibc hands large freed blocks back to the system and asks for them anew: thousands of page faults in a training step,
how many is up to the process and the thread.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

MMAP_THRESHOLD = -3  # of glibc's malloc.h
KEEP_MEMORY = {  # one arena for all threads, from which nothing is handed back
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**34),
    "MALLOC_TOP_PAD_": str(2**28),
}


def keep_memory():
    """Start this program anew with malloc set up as in :data:`KEEP_MEMORY`, unless it is."""
    if KEEP_MEMORY.items() - os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | KEEP_MEMORY)


def peak(work: Callable[[], Any]) -> int:
    """Return by how many bytes this process grows while it does some work that it has done before (Linux, glibc).

    What the first time loads or sets up for good is not counted. Freed memory is handed back before, so that none of
    it is there to be used again.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = status("VmRSS")
    work()
    return status("VmHWM") - before


def hand_back():
    """Set malloc up to hand back every block of 64 KiB or more when it is freed, so that a peak is what was held."""
    if not ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, 2**16):
        raise OSError("malloc's threshold could not be set")


def status(field: str) -> int:
    """Return one of this process' sizes in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def forked(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a process of its own."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(function, args)

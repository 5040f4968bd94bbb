"""The memory of a process: its size, and malloc set up so that its dealings with the system are in nobody's time.

glibc hands large freed blocks back to the system and asks for them anew: thousands of page faults in a training step,
how many is up to the process and the thread.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

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


def status(field: str) -> int:
    """Return one of this process' sizes in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))

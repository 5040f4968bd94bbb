"""The time that a comparison may take: it ends in time, and the same command goes on later, exactly.

A moment, the deadline, is given to the processes that train beside their run, so that it is part of no run's settings.
A training looks at the clock after each step.

Each process looks at the machine's clock once, when it begins, and counts on from there: a clock that is set later
moves no deadline. One that was set between the beginnings of a command and of a process that trains moves that of the
process: set back, it would stop too late, and the command ends it in time by its own count; set ahead, it stops too
early, and the same command goes on later. Time in which the machine sleeps does not count.
"""

from __future__ import annotations

import math
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

AHEAD = time.time() - time.monotonic()  # of 1970, when this process began
LEFT = 75  # the exit code where runs are left: EX_TEMPFAIL of sysexits.h, "try again later"


@dataclass(frozen=True)
class TimeLimit:
    """What a command may take, and how it is shared out."""

    begin: float  # of the command, in seconds since 1970
    seconds: float = math.inf  # that it may take; infinite without a limit

    @property
    def deadline(self) -> float:
        """When runs stop and no further one starts: a tenth, at most half a minute, is kept for what follows."""
        return self.begin + self.seconds - self._kept

    @property
    def end(self) -> float:
        """When what has not stopped is ended, so that the report comes in time: a third of what is kept is for it."""
        return self.begin + self.seconds - self._kept / 3

    @property
    def _kept(self) -> float:
        return min(30.0, self.seconds / 10)


UNLIMITED = TimeLimit(0.0)


def command_began() -> float:
    """Return when this command began, in seconds since 1970: before it imported its libraries, if it is the shell's."""
    return now() - (_age_of_process() if sys.argv[1:2] in (["compare"], ["find"]) else 0.0)


def _age_of_process() -> float:
    try:
        words = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(words[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):  # not Linux: at least the time that it has computed
        return time.process_time()


def now() -> float:
    """Return the seconds since 1970, by the clock as it was when this process began and what has gone by since."""
    return AHEAD + time.monotonic()

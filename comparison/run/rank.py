"""A further process of a run whose strategy has several; Lightning starts it."""

from __future__ import annotations

import contextlib
import sys

from comparison.run.run import perform
from comparison.run.stopping import Stopped

if __name__ == "__main__":
    with contextlib.suppress(Stopped):  # as on the first rank; an error would make Lightning kill that one
        perform(sys.argv[1].split("+"), sys.argv[2:])

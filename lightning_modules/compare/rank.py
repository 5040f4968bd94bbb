"""A further process of a run whose strategy has several; Lightning starts it."""

from __future__ import annotations

import contextlib
import sys

from lightning_modules.compare.run import perform
from lightning_modules.compare.time_limit import Stopped

if __name__ == "__main__":
    with contextlib.suppress(Stopped):  # as on the first rank; an error would make Lightning kill that one
        perform(sys.argv[1].split("+"), sys.argv[2:])

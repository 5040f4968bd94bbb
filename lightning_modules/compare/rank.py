"""A further process of a run whose strategy has several; Lightning starts it."""

from __future__ import annotations

import sys

from lightning_modules.compare.run import perform

if __name__ == "__main__":
    perform(sys.argv[1].split("+"), sys.argv[2:])

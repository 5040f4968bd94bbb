"""A line that says how far a long initialization is, where somebody looks at it."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from typing import Any

import torch.distributed as dist

AFTER = 3.0  # seconds in which nothing is shown
EVERY = 0.3  # seconds between two looks
LOOKING = "looking at the model"
CLEAR = "\r\x1b[K"


class Progress:
    """Shows on stderr, in a terminal or a notebook, which layer of how many an initialization has reached.

    The line appears after three seconds, is written over, and is gone at the end. It is written by a thread, so that it
    also tells of what takes long before the first layer, such as a forward pass in which attention is looked for. Use
    it as a context manager.

    Args:
        who: what is under way, at the beginning of the line.
        wanted: whether to show anything at all.
        stream: where to; ``None`` is stderr.
    """

    def __init__(self, who: str, wanted: bool = True, stream: Any = None) -> None:
        self.who = who
        self.stream = sys.stderr if stream is None else stream
        another_rank = dist.is_available() and dist.is_initialized() and dist.get_rank()
        self.wanted = wanted and is_watched(self.stream) and not another_rank
        self._reached = LOOKING
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Progress:
        if self.wanted:
            self._begin = time.monotonic()
            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join()

    def part(self, who: str) -> None:
        """Say which of several initializers begins."""
        self.who, self._reached = who, LOOKING

    def layer(self, number: int, total: int | None, name: str) -> None:
        """Say which layer is computed now, counted from 1, of how many, and its name."""
        of = "" if total is None else f" of {total}"
        self._reached = f"layer {number}{of}{f', {name}' if name else ''}"

    def step(self, number: int, total: int, loss: float) -> None:
        """Say which step of a training is done, counted from 1, of how many, and its loss."""
        self._reached = f"step {number} of {total}, loss {loss:.3f}"

    def line(self, seconds: float) -> str:
        """Return what is shown after so many seconds."""
        return f"{self.who}: {self._reached} ({seconds:.0f} s)"

    def _show(self) -> None:
        shown, pause = False, AFTER
        while not self._end.wait(pause):
            text = self.line(time.monotonic() - self._begin)
            self.stream.write(CLEAR + text[: shutil.get_terminal_size().columns - 1])
            self.stream.flush()
            shown, pause = True, EVERY
        if shown:
            self.stream.write(CLEAR)
            self.stream.flush()


def is_watched(stream: Any) -> bool:
    """Say whether somebody looks at a stream: a terminal, or the output of a notebook's cell."""
    return stream.isatty() or type(stream).__module__.startswith("ipykernel.")

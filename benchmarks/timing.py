"""Times of functions side by side, and how they are written down."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import quantiles
from typing import Any

Times = dict[str, list[float]]


def seconds(work: Callable[[], object]) -> float:
    """Return the processor time of one call."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def alternate(contestants: dict[str, Callable[[], float]], repeats: int) -> Times:
    """Let contestants take turns; each returns its own seconds."""
    times: Times = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            times[name].append(run())
            print(f"{name}: {times[name][-1]:.3f} s", file=sys.stderr, flush=True)
    return times


def spread(values: list[float], digits: int) -> str:
    """Return a median, quartiles in brackets."""
    if len(values) < 2:
        return f"{values[0]:.{digits}f}"
    lower, middle, upper = quantiles(values, n=4)
    return f"{middle:.{digits}f} ({lower:.{digits}f} – {upper:.{digits}f})"


class Stopwatch:
    """A function that sums the seconds of its calls, to time solutions inside a whole start."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.seconds = 0.0

    def __call__(self, *args: Any) -> Any:
        begin = time.process_time()
        result = self.function(*args)
        self.seconds += time.process_time() - begin
        return result

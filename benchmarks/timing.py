"""Times of functions side by side, and how they are written down."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from comparison.train.run import environment
from structured_init.util.files import write_json, write_text

SEED = 0  # of every initialization that is timed
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


def parser(about: str, parts: Iterable[str], repeats: int) -> ArgumentParser:
    """Return the options that :func:`measure_parts` reads, and how often each side is timed."""
    made = ArgumentParser(description=about, formatter_class=RawDescriptionHelpFormatter)
    made.add_argument("--parts", nargs="+", choices=tuple(parts), default=list(parts))
    made.add_argument("--repeats", type=int, default=repeats)
    made.add_argument("--output", type=Path, required=True)
    return made


def measure_parts(
    name: str,
    measures: dict[str, Callable[[Namespace], Any]],
    tables: Callable[[dict[str, Any]], str],
    options: Namespace,
) -> dict[str, Any]:
    """Measure part by part on one thread, writing what is there after each, and print the tables.

    Args:
        name: of the files, ``<name>.json`` and ``<name>.md``.
        measures: part → what measures it.
        tables: of a record, in Markdown.
        options: ``parts`` says which, ``output`` where they are written; both and all others are recorded as settings.

    Returns:
        The record: ``settings``, ``surroundings`` and what each part gave.
    """
    torch.set_num_threads(1)
    settings = {key: str(value) for key, value in vars(options).items() if key != "output"}
    with threadpool_limits(1):
        record: dict[str, Any] = {"settings": settings, "surroundings": {**environment(), "seed": SEED}}
        for part in options.parts:
            record[part] = measures[part](options)
            write_json(options.output / f"{name}.json", record)
            write_text(options.output / f"{name}.md", tables(record) + "\n")
    print(tables(record))
    return record


def spread(values: list[float], digits: int) -> str:
    """Return a median, quartiles in brackets."""
    if len(values) < 2:
        return f"{values[0]:.{digits}f}"
    lower, middle, upper = quantiles(values, n=4)
    return f"{middle:.{digits}f} ({lower:.{digits}f} – {upper:.{digits}f})"


class Stopwatch:
    """A function that sums the seconds of its calls, to time solutions inside a whole initialization."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.seconds = 0.0

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        begin = time.process_time()
        result = self.function(*args, **keywords)
        self.seconds += time.process_time() - begin
        return result

"""The commands ``structured-init compare``, ``find``, ``report`` and ``judge``.

Each is given the command line after its name. Options are read first: a mistake in them, and ``--help``, need no
library that trains or draws.
"""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from comparison.command.options import compare_parser, find_parser, judge_parser, report_parser
from structured_init.util.errors import begin_writing


def compare(args: Sequence[str]) -> None:
    """Run what is missing of a comparison, then write its report.

    Raises:
        StructuredInitError: a mistake; nothing was started or written.
        SystemExit: with code 1 where a run has failed, 75 where ``--time-limit`` has left runs that the same command
            goes on with, failed ones or not, 130 after Ctrl-C.
    """
    began = time.time()
    options, further = compare_parser().parse_known_args(args)
    _name_output(options, "")
    from comparison.command.comparing import run_comparison
    from comparison.train.time_limit import TimeLimit

    command = shlex.join(["structured-init", "compare", *args])
    with _resumable():
        run_comparison(options, further, command, TimeLimit(began, options.time_limit))


def find(args: Sequence[str]) -> None:
    """Find the initialization that a model should have, among those that fit it; raises what :func:`compare` does."""
    began = time.time()
    options, further = find_parser().parse_known_args(args)
    _name_output(options, "_find")
    from comparison.command.finding import run_find
    from comparison.train.time_limit import TimeLimit

    command = shlex.join(["structured-init", "find", *args])
    with _resumable():
        run_find(options, further, command, TimeLimit(began, options.time_limit))


def _name_output(options: argparse.Namespace, ending: str) -> None:
    """Name the folder to write to after the first configuration, where none is given, and say so."""
    if options.output is None:
        name = Path(options.config[0]).name.removesuffix(".yaml")
        options.output = f"runs/{name}{ending}"
        print(f"--output {options.output}")


@contextmanager
def _resumable() -> Iterator[None]:
    """Say after Ctrl-C how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        print("\nStopped. Run the same command again to continue.")
        raise SystemExit(130) from None


def report(args: Sequence[str]) -> None:
    """Write the report of a comparison, finished or not, or of runs made elsewhere; print its verdict and where it is.

    Raises:
        StructuredInitError: there is no comparison and no table, or a name is none of its initializations.
    """
    options = report_parser().parse_args(args)
    from comparison.contrasts.controls import parse_controls
    from comparison.say import write_report

    begin_writing()
    asked = {name: getattr(options, name) for name in ("baseline", "success", "metric", "mode", "seed", "arm")}
    asked["controls"] = parse_controls(options.control) or None
    command = shlex.join(["structured-init", "report", *args])
    page, *_ = write_report(options.folder, output=options.output, tell=print, command=command, **asked)
    print(f"report: {page}")


def judge(args: Sequence[str]) -> None:
    """Say of anybody's runs: keep, discard, or so many more seeds.

    Raises:
        StructuredInitError: they cannot be judged.
        SystemExit: with code 1 to discard, 75 where more seeds are needed.
    """
    options = judge_parser().parse_args(args)
    from comparison.command.judging import run_judge

    if status := run_judge(options):
        raise SystemExit(status)

"""The commands ``structured-init compare`` and ``structured-init report``."""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import shlex
import sys
import webbrowser
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from rich.console import Console
from rich.markdown import Markdown

from lightning_modules.compare.launch import Launcher, LocalLauncher, launch, variables
from lightning_modules.compare.learning_rates import choose, chosen_runs, write_choices
from lightning_modules.compare.lock import held
from lightning_modules.compare.plan import Comparison
from lightning_modules.compare.prepare import parse_controls, prepare
from lightning_modules.compare.progress import following, table
from lightning_modules.compare.run import Run
from lightning_modules.compare.time_limit import LEFT, TimeLimit, command_began, parse_duration
from structured_init.errors import StructuredInitError


class _Parser(argparse.ArgumentParser):
    """Raises in place of printing its usage."""

    def error(self, message: str) -> NoReturn:
        raise StructuredInitError(message)


def compare(args: Sequence[str]) -> None:
    """Run what is missing of a comparison, then write its report.

    Args:
        args: the command line after ``compare``.

    Raises:
        StructuredInitError: a mistake; nothing was started or written.
        SystemExit: with code 1 where a run has failed, 75 where ``--time-limit`` has left runs that the same command
            goes on with, failed ones or not, 130 after Ctrl-C.
    """
    began = command_began()
    options, further = compare_parser().parse_known_args(args)
    limit = TimeLimit(began, options.time_limit)
    console = Console(highlight=False)
    try:
        _compare(options, further, shlex.join(["structured-init", "compare", *args]), console, limit)
    except KeyboardInterrupt:
        console.print("\nStopped. The same command goes on where the runs were.")
        raise SystemExit(130) from None


def report(args: Sequence[str]) -> None:
    """Write the report of a comparison, finished or not.

    Args:
        args: the command line after ``report``.

    Raises:
        StructuredInitError: the folder holds no comparison, or a name is none of its starts.
    """
    options = report_parser().parse_args(args)
    from lightning_modules.compare.report import write_report

    controls = parse_controls(options.control) or None
    for path in write_report(options.folder, options.baseline, controls, options.output):
        print(path)


def _compare(
    options: argparse.Namespace, further: Sequence[str], command: str, console: Console, limit: TimeLimit
) -> None:
    if options.launcher == "ray":
        from lightning_modules.compare.ray_launcher import import_ray

        import_ray()  # before the work of checking everything else
    comparison = prepare(options, further, command)
    with variables(limit.environment):
        launcher = _launcher(options)
        try:
            with held(comparison.folder):
                failed, left = _train(comparison, launcher, console, limit)
        finally:
            launcher.close()
    if not left or any(comparison.folder.glob("runs/**/result.json")):
        _report(comparison, options, console)
    if failed:
        console.print(f"{len(failed)} of the runs failed; the same command tries them again:")
        for name, reason in failed.items():
            console.print(f"  {name}: {reason}", markup=False, soft_wrap=True)
    if left:
        console.print(f"The time is up: {left}. The same command goes on.")
        raise SystemExit(LEFT)
    if failed:
        raise SystemExit(1)


def _train(
    comparison: Comparison, launcher: Launcher, console: Console, limit: TimeLimit
) -> tuple[dict[str, str], str]:
    """Train what is missing; return why runs failed, by their names, and what the time limit has left, in words."""
    known = comparison.known()
    manifest = comparison.manifest() if known is None else comparison.grown(known)
    comparison.write(manifest)
    if comparison.learning_rates:  # the choice is among all rates of the folder, over all of its seeds
        comparison = dataclasses.replace(comparison, learning_rates=manifest["learning_rates"], seeds=manifest["seeds"])
    runs = comparison.runs(identity=manifest["identity"])
    failed = _follow(comparison, manifest, runs, launcher, console, limit)
    left = _left(runs, failed)
    if comparison.learning_rates and not left:
        choices = choose(comparison, runs)
        write_choices(comparison, choices)
        console.print("The learning rates are chosen; now the test split is read.")
        chosen = chosen_runs(choices, runs)
        failed |= _follow(comparison, manifest, chosen, launcher, console, limit)
        left = _left(chosen, failed)
    return failed, left


def _left(runs: Sequence[Run], failed: Mapping[str, str]) -> str:
    """Say how many runs are neither complete nor failed; nothing where none is."""
    complete = sum(run.complete for run in runs)
    left = sum(not run.complete and run.name not in failed for run in runs)
    return f"{complete} of {len(runs)} runs are complete, {left} left" if left else ""


def _follow(
    comparison: Comparison,
    manifest: dict[str, Any],
    runs: Sequence[Run],
    launcher: Launcher,
    console: Console,
    limit: TimeLimit,
) -> dict[str, str]:
    waiting = [run for run in runs if not run.complete]
    for run in waiting:
        run.failure_file.unlink(missing_ok=True)
    with following(console, comparison.folder, manifest, runs, launcher.places) as progress:
        launch(waiting, launcher, progress.started, progress.ended, limit)
    return progress.failed


def _launcher(options: argparse.Namespace) -> Launcher:
    if options.launcher == "local":
        return LocalLauncher(options.parallel, options.threads, options.gpus_per_run)
    from lightning_modules.compare.ray_launcher import RayLauncher

    return RayLauncher(options.ray_address, options.threads, options.cpus_per_run, options.gpus_per_run)


def _report(comparison: Comparison, options: argparse.Namespace, console: Console) -> None:
    """Write the report, print its table, and show it in a browser where there is one to be seen."""
    from lightning_modules.compare.report import write_report

    page, *_ = write_report(comparison.folder)
    shown = table(comparison.folder, comparison.known() or {})
    console.print(Markdown(shown) if console.is_terminal else shown, markup=False, soft_wrap=True)
    console.print(f"report: {page}", markup=False, soft_wrap=True)
    screen = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if console.is_terminal and screen and not options.no_open:
        webbrowser.open(page.resolve().as_uri())


def compare_parser() -> argparse.ArgumentParser:
    """Return the parser of ``compare``."""
    parser = _Parser(
        prog="structured-init compare",
        description="Train an experiment from several starts with the same seeds, and report the paired differences.",
        epilog="Any further --key value goes to every run. The same command again goes on where it was stopped.",
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=32, width=110),
    )
    add = parser.add_argument
    add("-c", "--config", action="append", required=True, metavar="EXPERIMENT", help="a configuration; several layer")
    add("--inits", required=True, metavar="A,B,…", help="starts: default,wide=impulse{kernel_size=5},my_start.yaml")
    add("--seeds", default="0,1,2", metavar="0,1,2", help="or 0-4 (default: %(default)s)")
    add("--output", required=True, metavar="DIR", help="folder of the comparison")
    add("--baseline", metavar="START", help="what differences refer to (default: 'default', else the first)")
    add("--control", metavar="START", help="same-positions control, of all or as START=CONTROL,… (default: found)")
    add("--grid", action="append", default=[], metavar="KEY=a,b", help="repeat all of it at each value; several cross")
    add("--learning-rates", default="", metavar="a,b", help="choose one per start on the validation split")
    add("--metric", metavar="NAME", help="such as test/accuracy (default: the task's)")
    add("--mode", choices=("max", "min"), help="whether more or less of it is better (default: the task's)")
    add("--parallel", type=_positive, default=1, metavar="N", help="runs at a time on this machine (default: 1)")
    add("--threads", type=_positive, default=1, metavar="N", help="per run, part of its identity (default: 1)")
    add("--launcher", choices=("local", "ray"), default="local", help="where runs are trained (default: local)")
    add("--ray-address", metavar="A", help="of a Ray cluster; without it one is started here")
    add("--cpus-per-run", type=float, default=1, metavar="N", help="that Ray reserves (default: 1)")
    add("--gpus-per-run", type=float, default=0, metavar="N", help="of each run (default: 0)")
    limit = "such as 55m, 2h or 01:30:00: stop in time, with exit code 75; the same command goes on"
    add("--time-limit", type=parse_duration, default=math.inf, metavar="T", help=limit)
    add("--no-open", action="store_true", help="do not show the report in a browser")
    return parser


def report_parser() -> argparse.ArgumentParser:
    """Return the parser of ``report``."""
    parser = _Parser(
        prog="structured-init report",
        description="Write the report of a comparison again, finished or not.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("folder", metavar="DIR", help="folder of the comparison")
    add("--baseline", metavar="START", help="what differences refer to (default: the comparison's)")
    add("--control", metavar="START", help="same-positions control, of all or as START=CONTROL,… (default: found)")
    add("--output", metavar="FILE", help="the page (default: DIR/report.html); figures and tables go beside it")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, got '{text}'")
    return int(text)

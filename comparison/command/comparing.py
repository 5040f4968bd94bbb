"""A comparison from its options to its report: planned, trained, written."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import signal
import sys
import webbrowser
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.markdown import Markdown

from comparison.contrasts.place import look
from comparison.plan.comparison import Comparison
from comparison.plan.further_seeds import Added, further_runs, progress_text
from comparison.plan.learning_rates import choose, chosen_runs
from comparison.plan.prepare import prepare
from comparison.runs.folder import (
    Manifest,
    Run,
    chosen_learning_rates,
    locked,
    read_manifest,
    write_choices,
    write_manifest,
)
from comparison.say import write_report
from comparison.train.launch import Launcher, LocalLauncher, launch
from comparison.train.progress import following, refuse_unlogged
from comparison.train.time_limit import LEFT, TimeLimit
from structured_init.util.errors import begin_writing


def run_comparison(options: argparse.Namespace, further: Sequence[str], command: str, limit: TimeLimit) -> None:
    """Run what is missing of a comparison, then write its report."""
    with begun(options, limit, lambda: prepare(options, further, command)) as training:
        left = training.train()
    comparison, console = training.comparison, training.console
    if not left or any(comparison.folder.glob("runs/**/result.json")):
        with locked(comparison.folder):
            _report(comparison, options, console)
    if training.failed:
        say(console, f"{len(training.failed)} of the runs failed. Run the same command again to retry them:")
        for name, reason in training.failed.items():
            say(console, f"  {name}: {reason}")
    if left:
        say(console, f"The time is up: {left}. Run it again to continue.")
        raise SystemExit(LEFT)
    if training.failed:
        raise SystemExit(1)


def say(console: Console, text: str) -> None:
    """Print a text as it is, on one line."""
    console.print(text, markup=False, soft_wrap=True)


@dataclasses.dataclass
class Training:
    """Trains the runs of a comparison; ``failed`` says why runs failed, by their names."""

    comparison: Comparison
    whole: Manifest  # of the folder, which earlier commands have begun
    launcher: Launcher
    console: Console
    limit: TimeLimit
    failed: dict[str, str] = dataclasses.field(default_factory=dict)

    def train(self) -> str:
        """Train what is missing; return what the time limit has left, in words."""
        comparison = self.comparison
        if not comparison.learning_rates:
            left = self.follow(comparison.runs())
        else:  # the choice is among all rates of the folder, over all of its seeds
            every = {"learning_rates": self.whole.learning_rates, "seeds": self.whole.seeds}
            runs = dataclasses.replace(comparison, **every).runs()
            left = self.follow(runs, "learning rates")
            if not left:
                choices = choose(comparison, runs)
                write_choices(comparison.folder, choices)
                say(self.console, "The learning rates are chosen. The test split is read now.")
                left = self.follow(chosen_runs(choices, runs), "test split")
        while comparison.question and not left:
            added = self._further()
            if not added:
                break
            left = self.follow(comparison.added_runs(added), "further seeds")
        return left

    def _further(self) -> list[Added]:
        """Look, and return the runs that the folder's further seeds ask for, none where more would not help.

        They are written down before they are trained, so that the same command goes on with them.
        """
        comparison, folder = self.comparison, self.comparison.folder
        with locked(folder):
            manifest = read_manifest(folder)
            begun = comparison.added_runs(manifest.added)
            if any(not run.complete and run.name not in self.failed for run in begun):
                return list(manifest.added)
            found = look(folder, manifest)
            failed = {name.partition(", ")[0] for name in self.failed}
            others = manifest.arms.keys() - comparison.arms.keys()  # what this command does not name gets no seeds
            added = further_runs(manifest, found, chosen_learning_rates(folder), failed | others)
            say(self.console, progress_text(found, added))
            write_manifest(folder, dataclasses.replace(manifest, added=[*manifest.added, *added]))
        return added

    def follow(self, runs: Sequence[Run], phase: str = "") -> str:
        """Train runs; say how many are then neither complete nor failed, nothing where none is."""
        waiting = [run for run in runs if not run.complete]
        for run in waiting:
            run.failure_file.unlink(missing_ok=True)
        with following(self.console, self.comparison.metric, runs, phase) as progress:
            launch(waiting, self.launcher, progress, self.limit)
        self.failed |= progress.failed
        complete = [run for run in runs if run.complete]
        for run in complete:
            refuse_unlogged(run.latest(), self.comparison.metric)
        left = sum(not run.complete and run.name not in self.failed for run in runs)
        return f"{len(complete)} of {len(runs)} runs are complete, {left} left" if left else ""


@contextlib.contextmanager
def begun(options: argparse.Namespace, limit: TimeLimit, prepare_runs: Callable[[], Comparison]) -> Iterator[Training]:
    """Give what trains a comparison, once that has been prepared, and what is to be known of it is said."""
    console = Console(highlight=False)
    launcher = _launcher_of(options, limit)  # it imports the libraries beside what is prepared here
    try:
        comparison = prepare_runs()
        for remark in comparison.notices:
            say(console, remark)
        begin_writing(signal.SIGTERM)
        yield Training(comparison, comparison.write(), launcher, console, limit)
    finally:
        launcher.close()


def _launcher_of(options: argparse.Namespace, limit: TimeLimit) -> Launcher:
    """Return where runs are trained, by the options of ``compare`` or ``find``."""
    if options.launcher == "local":
        return LocalLauncher(options.parallel, options.threads, options.gpus_per_run, limit.deadline)
    from comparison.train.ray_launcher import RayLauncher

    reserved = (options.threads, options.cpus_per_run, options.gpus_per_run)
    return RayLauncher(options.ray_address, *reserved, limit.deadline)


def _report(comparison: Comparison, options: argparse.Namespace, console: Console) -> None:
    """Write the report, print its table, and show it in a browser where there is one to be seen."""
    told: list[str] = []
    page, *_ = write_report(comparison.folder, tell=told.append)
    for text in told:
        console.print(Markdown(text) if console.is_terminal else text, markup=False, soft_wrap=True)
    say(console, f"report: {page}")
    screen = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if console.is_terminal and screen and not options.no_open:
        webbrowser.open(page.resolve().as_uri())

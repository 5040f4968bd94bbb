"""A comparison from its options to its report: prepared, trained, written."""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import sys
import webbrowser
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markdown import Markdown

from comparison.report import write_report
from comparison.report.findings import findings
from comparison.results.folder import Manifest, Run, chosen_learning_rates, point_label, write_choices, write_manifest
from comparison.results.headline import look
from comparison.results.power import power_sentence
from comparison.results.records import load_results
from comparison.run.comparison import Comparison, locked
from comparison.run.deciding import affordable, further_runs, progress_text, seconds_of
from comparison.run.launch import Launcher, LocalLauncher, launch
from comparison.run.learning_rates import choose, chosen_runs
from comparison.run.prepare import prepare
from comparison.run.progress import duration, following, table
from comparison.run.run import set_aside
from comparison.run.time_limit import LEFT, TimeLimit
from structured_init.errors import StructuredInitError, begin_writing


def run_comparison(options: argparse.Namespace, further: Sequence[str], command: str, limit: TimeLimit) -> None:
    """Run what is missing of a comparison, then write its report."""
    console = Console(highlight=False)
    try:
        _compare(options, further, command, console, limit)
    except KeyboardInterrupt:
        console.print("\nStopped. Run the same command again to continue.")
        raise SystemExit(130) from None


def _compare(
    options: argparse.Namespace, further: Sequence[str], command: str, console: Console, limit: TimeLimit
) -> None:
    if options.launcher == "ray":
        from comparison.run.ray_launcher import import_ray

        import_ray()  # before the work of checking everything else
    # One of this machine imports the libraries for the processes that train beside what is prepared here.
    launcher = None if options.launcher == "ray" else launcher_of(options, limit)
    comparison = prepare(options, further, command)
    for remark in comparison.remarks:
        console.print(remark, markup=False, soft_wrap=True)
    launcher = launcher or launcher_of(options, limit)
    begin_writing()
    try:
        with locked(comparison.folder):
            budget = math.inf if options.budget is None else options.budget
            failed, left = _train(comparison, launcher, console, limit, budget)
    finally:
        launcher.close()
    if not left or any(comparison.folder.glob("runs/**/result.json")):
        _report(comparison, options, console)
    if failed:
        console.print(f"{len(failed)} of the runs failed. Run the same command again to retry them:")
        for name, reason in failed.items():
            console.print(f"  {name}: {reason}", markup=False, soft_wrap=True)
    split = comparison.metric.partition("/")[0]
    done = load_results(comparison.folder)
    if not (failed or left or done.empty or any(name.startswith(f"{split}/") for name in done.columns)):
        raise StructuredInitError(
            f"all runs are complete, and none logs a '{split}/…': a comparison reads what a module logs as 'test/…' in "
            "test_step, or as 'val/…' with --metric val/…"
        )
    if left:
        console.print(f"The time is up: {left}. Run it again to continue.")
        raise SystemExit(LEFT)
    if failed:
        raise SystemExit(1)


def _train(
    comparison: Comparison, launcher: Launcher, console: Console, limit: TimeLimit, budget: float
) -> tuple[dict[str, str], str]:
    """Train what is missing; return why runs failed, by their names, and what the time limit has left, in words."""
    known = comparison.known()
    manifest = comparison.manifest() if known is None else comparison.grown(known)
    write_manifest(comparison.folder, manifest)
    if len(manifest["made_by"]) > 1:
        versions = "; ".join(manifest["made_by"])
        text = f"'{comparison.folder}' was made by different versions of structured-init: {versions}."
        console.print(f"{text} The report says which runs are whose.", markup=False, soft_wrap=True)
    if comparison.learning_rates:  # the choice is among all rates of the folder, over all of its seeds
        comparison = dataclasses.replace(comparison, learning_rates=manifest["learning_rates"], seeds=manifest["seeds"])
    runs = comparison.runs(identity=manifest["identity"])
    phase = "learning rates" if comparison.learning_rates else ""
    failed = _follow(comparison, manifest, runs, launcher, console, limit, phase)
    left = _left(runs, failed)
    if comparison.learning_rates and not left:
        choices = choose(comparison, runs)
        write_choices(comparison.folder, choices)
        console.print("The learning rates are chosen. The test split is read now.")
        chosen = chosen_runs(choices, runs)
        failed |= _follow(comparison, manifest, chosen, launcher, console, limit, "test split")
        left = _left(chosen, failed)
    if comparison.question and not left:
        more, left = _decide(comparison, manifest, launcher, console, limit, budget, failed)
        failed |= more
    return failed, left


def _decide(
    comparison: Comparison,
    manifest: Manifest,
    launcher: Launcher,
    console: Console,
    limit: TimeLimit,
    budget: float,
    failed: Mapping[str, str],
) -> tuple[dict[str, str], str]:
    """Look, add seeds where they help, train them, and look again; return as ``_train`` does.

    What is added is written down before it is trained, so that the same command goes on with it.
    """
    folder, failed = comparison.folder, dict(failed)
    runs = comparison.added_runs(manifest["added"], identity=manifest["identity"])
    while True:
        if any(not run.complete for run in runs):
            failed |= _follow(comparison, manifest, runs, launcher, console, limit, "further seeds")
        left = _left(runs, failed)
        if left:
            return failed, left
        found = look(folder, manifest)
        lost = {arm for arm in comparison.arms if any(name.startswith(f"{arm}, ") for name in failed)}
        others = manifest["arms"].keys() - comparison.arms.keys()  # what this command does not name gets no seeds
        choices = chosen_learning_rates(folder)
        added = further_runs(manifest, found, launcher.places, lost | others, choices)
        console.print(progress_text(found, added), markup=False, soft_wrap=True)
        if not added:
            return failed, ""
        seconds = seconds_of(folder)
        if not affordable(seconds, len(added), budget):
            spent = f"the runs took {duration(sum(seconds))}, {duration(budget)} were allowed"
            text = f"The budget is used up: {spent}, and {len(added)} more runs would go beyond it."
            console.print(text, markup=False, soft_wrap=True)
            return failed, ""
        manifest["added"] += added
        write_manifest(folder, manifest)
        runs = comparison.added_runs(added, identity=manifest["identity"])


def _left(runs: Sequence[Run], failed: Mapping[str, str]) -> str:
    """Say how many runs are neither complete nor failed; nothing where none is."""
    complete = sum(run.complete for run in runs)
    left = sum(not run.complete and run.name not in failed for run in runs)
    return f"{complete} of {len(runs)} runs are complete, {left} left" if left else ""


def _follow(
    comparison: Comparison,
    manifest: Manifest,
    runs: Sequence[Run],
    launcher: Launcher,
    console: Console,
    limit: TimeLimit,
    phase: str,
) -> dict[str, str]:
    waiting = [run for run in runs if not run.complete]
    for run in waiting:
        run.failure_file.unlink(missing_ok=True)
        if said := set_aside(run):
            console.print(said, markup=False, soft_wrap=True)
    with following(console, comparison.folder, manifest, runs, launcher.places, phase) as progress:
        launch(waiting, launcher, progress.started, progress.ended, limit)
    return progress.failed


def launcher_of(options: argparse.Namespace, limit: TimeLimit) -> Launcher:
    """Return where runs are trained, by the options of ``compare`` or ``find``."""
    if options.launcher == "local":
        return LocalLauncher(options.parallel, options.threads, options.gpus_per_run, limit.deadline)
    from comparison.run.ray_launcher import RayLauncher

    reserved = (options.threads, options.cpus_per_run, options.gpus_per_run)
    return RayLauncher(options.ray_address, *reserved, limit.deadline)


def _report(comparison: Comparison, options: argparse.Namespace, console: Console) -> None:
    """Write the report, print its table, and show it in a browser where there is one to be seen."""
    page, *_ = write_report(comparison.folder)
    shown = table(comparison.folder, comparison.known() or {})
    console.print(Markdown(shown) if console.is_terminal else shown, markup=False, soft_wrap=True)
    for each in look(comparison.folder, comparison.known() or {}):
        place = [f"{point_label(each.point)}:"] if each.point else []
        said = findings(each) if each.question else []
        for text in filter(None, [*place, *said, power_sentence(each)]):
            console.print(text, markup=False, soft_wrap=True)
    console.print(f"report: {page}", markup=False, soft_wrap=True)
    screen = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if console.is_terminal and screen and not options.no_open:
        webbrowser.open(page.resolve().as_uri())

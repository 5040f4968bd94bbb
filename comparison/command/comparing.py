"""A comparison from its options to its report: prepared, trained, written."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
import webbrowser
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markdown import Markdown

from comparison.report import write_report
from comparison.report.findings import findings
from comparison.results.folder import Manifest, Run, chosen_learning_rates, point_label, write_choices, write_manifest
from comparison.results.headline import look
from comparison.results.metric import ROUNDED_SHARE, Metric
from comparison.results.power import power_sentence
from comparison.results.records import load_results
from comparison.run.comparison import Comparison, locked
from comparison.run.deciding import further_runs, progress_text
from comparison.run.launch import Launcher, LocalLauncher, launch
from comparison.run.learning_rates import choose, chosen_runs
from comparison.run.prepare import prepare
from comparison.run.progress import following, table
from comparison.run.run import set_aside
from comparison.run.time_limit import LEFT, TimeLimit
from structured_init.util.errors import StructuredInitError, begin_writing, nearest


def run_comparison(options: argparse.Namespace, further: Sequence[str], command: str, limit: TimeLimit) -> None:
    """Run what is missing of a comparison, then write its report."""
    console = Console(highlight=False)
    if options.launcher == "ray":
        from comparison.run.ray_launcher import import_ray

        import_ray()  # before the work of checking everything else
    # One of this machine imports the libraries for the processes that train beside what is prepared here.
    launcher = None if options.launcher == "ray" else launcher_of(options, limit)
    comparison = prepare(options, further, command)
    for remark in comparison.remarks:
        console.print(remark, markup=False, soft_wrap=True)
    launcher = launcher or launcher_of(options, limit)
    begin_writing(signal.SIGTERM)
    try:
        with locked(comparison.folder):
            known = comparison.known()
            manifest = comparison.manifest() if known is None else comparison.grown(known)
            write_manifest(comparison.folder, manifest)
            training = _Training(comparison, manifest, launcher, console, limit)
            left = training.train()
            failed = training.failed
    finally:
        launcher.close()
    if not left or any(comparison.folder.glob("runs/**/result.json")):
        _report(comparison, options, console)
    if failed:
        console.print(f"{len(failed)} of the runs failed. Run the same command again to retry them:")
        for name, reason in failed.items():
            console.print(f"  {name}: {reason}", markup=False, soft_wrap=True)
    done = load_results(comparison.folder)
    if not (failed or left or done.empty):
        _refuse_unlogged(comparison.metric, done.columns)
        share = Metric(comparison.metric).factor == 100 and comparison.metric in done
        if share and (most := done[comparison.metric].max()) > ROUNDED_SHARE:
            shown = f"{comparison.metric} is logged up to {most:.4g} and shown as {100 * most:.4g} %"
            console.print(f"{shown}: log a share, 0 to 1.", markup=False, soft_wrap=True)
    if left:
        console.print(f"The time is up: {left}. Run it again to continue.")
        raise SystemExit(LEFT)
    if failed:
        raise SystemExit(1)


def _refuse_unlogged(metric: str, logged: Iterable[str]) -> None:
    """Refuse a metric that complete runs do not log, before others are trained for it."""
    split = metric.partition("/")[0]
    names = [name for name in logged if name.startswith(f"{split}/")]
    if not names:
        raise StructuredInitError(
            f"a run is complete, and logs no '{split}/…': a comparison reads what a module logs as 'test/…' in "
            "test_step, or as 'val/…' with --metric val/…"
        )
    if metric not in names:
        raise StructuredInitError(f"the runs log no '{metric}': {nearest(metric, names)} (what is trained stays)")


@dataclasses.dataclass
class _Training:
    """Trains the runs of a comparison; ``failed`` says why runs failed, by their names."""

    comparison: Comparison
    manifest: Manifest
    launcher: Launcher
    console: Console
    limit: TimeLimit
    failed: dict[str, str] = dataclasses.field(default_factory=dict)

    def train(self) -> str:
        """Train what is missing; return what the time limit has left, in words."""
        comparison, identity = self.comparison, self.manifest["identity"]
        if len(self.manifest["made_by"]) > 1:
            versions = "; ".join(self.manifest["made_by"])
            said = f"'{comparison.folder}' was made by different versions of structured-init: {versions}."
            self.console.print(said, markup=False, soft_wrap=True)
        if not comparison.learning_rates:
            left = self._follow(comparison.runs(identity=identity))
        else:  # the choice is among all rates of the folder, over all of its seeds
            every = {"learning_rates": self.manifest["learning_rates"], "seeds": self.manifest["seeds"]}
            comparison = dataclasses.replace(comparison, **every)
            runs = comparison.runs(identity=identity)
            left = self._follow(runs, "learning rates")
            if not left:
                choices = choose(comparison, runs)
                write_choices(comparison.folder, choices)
                self.console.print("The learning rates are chosen. The test split is read now.")
                left = self._follow(chosen_runs(choices, runs), "test split")
        return self._decide() if comparison.question and not left else left

    def _decide(self) -> str:
        """Look, add seeds where they help, train them, and look again; return as :meth:`train` does.

        What is added is written down before it is trained, so that the same command goes on with it.
        """
        comparison, manifest, folder = self.comparison, self.manifest, self.comparison.folder
        runs = comparison.added_runs(manifest["added"], identity=manifest["identity"])
        while True:
            if any(not run.complete for run in runs) and (left := self._follow(runs, "further seeds")):
                return left
            found = look(folder, manifest)
            lost = {arm for arm in comparison.arms if any(name.startswith(f"{arm}, ") for name in self.failed)}
            others = manifest["arms"].keys() - comparison.arms.keys()  # what this command does not name gets no seeds
            choices = chosen_learning_rates(folder)
            added = further_runs(manifest, found, lost | others, choices)
            self.console.print(progress_text(found, added), markup=False, soft_wrap=True)
            if not added:
                return ""
            manifest["added"] += added
            write_manifest(folder, manifest)
            runs = comparison.added_runs(added, identity=manifest["identity"])

    def _follow(self, runs: Sequence[Run], phase: str = "") -> str:
        """Train runs; say how many are then neither complete nor failed, nothing where none is."""
        waiting = [run for run in runs if not run.complete]
        for run in waiting:
            run.failure_file.unlink(missing_ok=True)
            if said := set_aside(run):
                self.console.print(said, markup=False, soft_wrap=True)
        places, folder = self.launcher.places, self.comparison.folder
        with following(self.console, folder, self.manifest, runs, places, phase) as progress:

            def ended(run: Run | None = None, reason: str | None = None) -> None:
                progress.ended(run, reason)
                result = run.latest().result if run is not None and run.complete else None
                if run is not None and result is not None:
                    split, _, name = self.comparison.metric.partition("/")
                    _refuse_unlogged(f"{split if run.tested else 'val'}/{name}", result["metrics"])

            launch(waiting, self.launcher, progress.started, ended, self.limit)
        self.failed |= progress.failed
        complete = sum(run.complete for run in runs)
        left = sum(not run.complete and run.name not in self.failed for run in runs)
        return f"{complete} of {len(runs)} runs are complete, {left} left" if left else ""


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
        said = [*filter(None, [*said, power_sentence(each)])]
        for text in [*place, *said] if said else []:
            console.print(text, markup=False, soft_wrap=True)
    console.print(f"report: {page}", markup=False, soft_wrap=True)
    screen = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if console.is_terminal and screen and not options.no_open:
        webbrowser.open(page.resolve().as_uri())

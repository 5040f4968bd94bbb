"""What runs, what is left and how long it will take: a line for each run that ends, and a bar in a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from comparison.runs.folder import Run
from comparison.tables import count
from structured_init.util.errors import StructuredInitError, nearest


class Progress:
    """Prints a line for each run that ends, and has a bar of the runs."""

    def __init__(self, console: Console, metric: str, runs: Sequence[Run], bars: Bars, phase: str = "") -> None:
        self.console, self.metric, self.runs, self.bars, self.phase = console, metric, runs, bars, phase
        self.failed: dict[str, str] = {}  # a run's name → why
        self.done = sum(run.complete for run in runs)
        self._bar = bars.add_task("runs", total=len(runs), completed=self.done)
        before = f"{phase}: " if phase else ""
        already = f", {self.done} of them complete" if self.done else ""
        self._say(f"{before}{count(len(runs), 'run')}{already}")

    def ended(self, run: Run, reason: str | None) -> None:
        """Say how a run has ended, and why it failed; other commands may have trained it."""
        if reason is None and not run.complete:
            self._say(f"{run.name}: stopped")
            return
        self.done += 1
        self.bars.update(self._bar, completed=self.done)
        said = f"failed: {reason}"
        if reason:
            self.failed[run.name] = reason
        else:
            result = run.latest().result or {}
            name = refuse_unlogged(run.latest(), self.metric)
            said = f"{name} {result['metrics'][name]:.4g}, {result['seconds']:,.0f} s"
        self._say(f"{self.phase} [{self.done}/{len(self.runs)}] {run.name}: {said}".lstrip())

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)


@contextlib.contextmanager
def following(console: Console, metric: str, runs: Sequence[Run], phase: str = "") -> Iterator[Progress]:
    """Give what follows the runs, with a bar below its lines in a terminal."""
    time = (TimeElapsedColumn(), TimeRemainingColumn())
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), *time)
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        yield Progress(console, metric, runs, bars, phase)


def refuse_unlogged(run: Run, metric: str) -> str:
    """Refuse a metric that a complete run does not log, before others are trained for it; return its name.

    A run that has not read the test split is asked for the metric on the validation split.
    """
    assert run.result is not None
    split, _, name = metric.partition("/")
    split = split if run.tested else "val"
    logged = [each for each in run.result["metrics"] if each.startswith(f"{split}/")]
    if not logged:
        raise StructuredInitError(
            f"a run is complete, and logs no '{split}/…': a comparison reads what a module logs as 'test/…' in "
            "test_step, or as 'val/…' with --metric val/…; a validation has to end before the training does"
        )
    if f"{split}/{name}" not in logged:
        raise StructuredInitError(
            f"the runs log no '{split}/{name}': {nearest(f'{split}/{name}', logged)} (what is trained stays)"
        )
    return f"{split}/{name}"

"""What runs, what is left and how long it will take: a line for each run that ends, and bars in a terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from comparison.runs.folder import Manifest, Run
from comparison.train.run_log import read_rows
from structured_init.util.errors import StructuredInitError, nearest


class Progress:
    """Prints a line for each run that ends, and has a bar for each that runs, of its epochs."""

    def __init__(self, console: Console, manifest: Manifest, runs: Sequence[Run], bars: Bars, phase: str = "") -> None:
        self.console, self.manifest, self.runs, self.bars, self.phase = console, manifest, runs, bars, phase
        self.failed: dict[str, str] = {}  # a run's name → why
        self.done = sum(run.complete for run in runs)
        self._before, self._begin = self.done, time.perf_counter()
        self._bars = {}  # of the runs that run
        before = f"{phase}: " if phase else ""
        already = f", {self.done} of them complete" if self.done else ""
        console.print(f"{before}{len(runs)} run{'s' * (len(runs) != 1)}{already}")

    def started(self, run: Run) -> None:
        """Show a run that starts."""
        if run not in self._bars:  # another command may have been a moment faster before
            epochs = self.manifest["configuration"].get("trainer.max_epochs") or 0
            self._bars[run] = self.bars.add_task(run.name, total=epochs if epochs > 0 else None)

    def look(self) -> None:
        """Show where the runs are."""
        for run, bar in self._bars.items():
            self.bars.update(bar, completed=epoch(run) or 0)

    def ended(self, run: Run, reason: str | None) -> None:
        """Say how a run has ended, and why it failed; other commands may have trained it."""
        if run in self._bars:
            self.bars.remove_task(self._bars.pop(run))
        if reason is None and not run.complete:
            self._say(f"{run.name}: stopped")
            return
        self.done += 1
        if reason:
            self.failed[run.name] = reason
        said = f"failed: {reason}" if reason else self._value(run.latest())
        left = self.remaining()
        rest = f"; about {duration(left)} left" if left else ""
        count = f"{self.phase} [{self.done}/{len(self.runs)}]".lstrip()
        self._say(f"{count} {run.name}: {said}{rest}")

    def remaining(self) -> float:
        """Return the seconds that are left, at the speed so far."""
        each = (time.perf_counter() - self._begin) / (self.done - self._before)
        return each * (len(self.runs) - self.done)

    def _value(self, run: Run) -> str:
        name = refuse_unlogged(run, self.manifest["metric"])
        assert run.result is not None
        return f"{name} {run.result['metrics'][name]:.4g}, {duration(run.result['seconds'])}"

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)


@contextlib.contextmanager
def following(console: Console, manifest: Manifest, runs: Sequence[Run], phase: str = "") -> Iterator[Progress]:
    """Give what follows the runs, with bars below its lines in a terminal."""
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        yield Progress(console, manifest, runs, bars, phase)


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


def epoch(run: Run) -> int | None:
    """Return the epoch that a run is in, counted from 1, as far as its log tells."""
    rows = read_rows(run.folder / "metrics.csv")
    epochs = [int(row["epoch"]) for row in rows[-3:] if (row.get("epoch") or "").isdecimal()]
    return max(epochs) + 1 if epochs else None


def duration(seconds: float) -> str:
    """Return a time for reading."""
    if round(seconds) < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"

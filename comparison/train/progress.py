"""What runs, what is left and how long it will take: a line for each run, and a live picture in a terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.live import Live
from rich.text import Text

from comparison.results.folder import Manifest, Run
from comparison.train.run import last_checkpoint
from comparison.train.run_log import read_rows
from lightning_modules.tasks.checkpoint import read_checkpoint
from structured_init.util.errors import StructuredInitError, nearest


class Progress:
    """Prints a line for each run that ends, and knows what a picture shows of those that run."""

    def __init__(self, console: Console, manifest: Manifest, runs: Sequence[Run], places: int, phase: str = "") -> None:
        self.console, self.manifest, self.runs, self.places, self.phase = console, manifest, runs, places, phase
        self.running: dict[Run, float] = {}  # since when
        self.failed: dict[str, str] = {}  # a run's name → why
        self.done = sum(run.complete for run in runs)
        self.seconds: list[float] = []  # that runs have taken here
        begun = sum(run.folder.is_dir() and not run.complete for run in runs)
        parts = [f"{len(runs)} run{'s' * (len(runs) != 1)}"]
        if self.done:
            parts.append(f"{self.done} of them complete")
        if begun:
            parts.append(f"{begun} begun before")
        if places:
            parts.append(f"{places} at a time")
        console.print((f"{phase}: " if phase else "") + ", ".join(parts))

    def started(self, run: Run) -> None:
        """Note that a run starts."""
        self.running[run] = time.perf_counter()

    def ended(self, run: Run, reason: str | None) -> None:
        """Note that a run has ended, and why it failed; other commands may have trained it."""
        begin = self.running.pop(run, None)
        if reason is None and not run.complete:
            self._say(f"{run.name}: stopped {_where(run)}")
            return
        self.done += 1
        if begin is not None:
            self.seconds.append(time.perf_counter() - begin)
        if reason:
            self.failed[run.name] = reason
        left = self.remaining()
        stage = " of this stage" if self.phase == "learning rates" else ""
        rest = f"; about {duration(left)}{stage} left" if left else ""
        said = f"failed: {reason}" if reason else self._value(run)
        count = f"{self.phase} [{self.done}/{len(self.runs)}]".lstrip()
        self._say(f"{count} {run.name}: {said}{rest}")

    def remaining(self) -> float | None:
        """Return the seconds that are left, by the runs so far; ``None`` while none has ended, 0 at the end."""
        left = len(self.runs) - self.done
        if not left:
            return 0.0
        if not self.seconds:
            return None
        mean = sum(self.seconds) / len(self.seconds)
        now = time.perf_counter()
        spent = sum(min(now - begin, mean) for begin in self.running.values())
        at_a_time = min(self.places or len(self.running), left)
        return max(left * mean - spent, 0.0) / max(at_a_time, 1)

    def picture(self) -> Text:
        """Return what runs with its epoch, and how much waits; drawn by a thread of its own."""
        total = self.manifest["configuration"].get("trainer.max_epochs")
        lines = []
        for run, begin in list(self.running.items()):
            at = epoch(run)
            where = "starting" if at is None else f"epoch {at}"
            if at is not None and total and total > 0:
                where += f" of {total}"
            lines.append(f"  {run.name}: {where}, {duration(time.perf_counter() - begin)}")
        left = self.remaining()
        waiting = len(self.runs) - self.done - len(self.running)
        lines.append(f"  {waiting} waiting" + (f"; about {duration(left)} left" if left else ""))
        return Text("\n".join(lines))

    def _value(self, run: Run) -> str:
        result = run.latest().result
        assert result is not None
        name = refuse_unlogged(run.latest(), self.manifest["metric"])
        return f"{name} {result['metrics'][name]:.4g}, {duration(result['seconds'])}"

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)


@contextlib.contextmanager
def following(
    console: Console, manifest: Manifest, runs: Sequence[Run], places: int, phase: str = ""
) -> Iterator[Progress]:
    """Give what follows the runs, with a live picture below its lines in a terminal."""
    progress = Progress(console, manifest, runs, places, phase)
    if not console.is_terminal:
        yield progress
        return
    with Live(get_renderable=progress.picture, console=console, refresh_per_second=1, transient=True):
        yield progress


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


def _where(run: Run) -> str:
    """Return where a run was stopped."""
    checkpoint = last_checkpoint(run.folder)
    if checkpoint is None:
        return "before its first validation"
    try:
        return f"after step {read_checkpoint(checkpoint)['global_step']}"
    except StructuredInitError as error:  # whole, and what it holds is not run without being asked to
        return f"({error})"


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

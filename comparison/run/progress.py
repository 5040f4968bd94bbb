"""What runs, what is left, how long it will take, and the table so far: live in a terminal, else in plain lines."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text

from comparison.results.folder import Manifest, Run
from comparison.run.run import last_checkpoint
from comparison.run.run_log import read_rows
from lightning_modules.tasks.checkpoint import read_checkpoint
from structured_init.util.errors import StructuredInitError


class Lines:
    """Prints a line for each run that ends, and the table so far after every seed."""

    def __init__(
        self, console: Console, folder: Path, manifest: Manifest, runs: Sequence[Run], places: int, phase: str = ""
    ) -> None:
        self.console, self.folder, self.manifest, self.runs, self.places = console, folder, manifest, runs, places
        self.running: dict[Run, float] = {}  # since when
        self.failed: dict[str, str] = {}  # a run's name → why
        self.done = sum(run.complete for run in runs)
        self.seconds: list[float] = []  # that runs have taken here
        self.per_seed = len(runs) // len({run.seed for run in runs}) if runs else 0
        self.phase = phase
        before = f"{phase}: " if phase else ""
        already = f", {self.done} of them complete" if self.done else ""
        begun = sum(not run.complete and run.folder.is_dir() for run in runs)
        already += f", {begun} begun before" if begun else ""
        many = f"{len(runs)} run{'s' * (len(runs) != 1)}{already}"
        console.print(before + many + (f", {places} at a time" if places else ""))

    def started(self, run: Run) -> None:
        """Note that a run starts."""
        self.running[run] = time.perf_counter()

    def ended(self, run: Run | None = None, reason: str | None = None) -> None:
        """Note that a run has ended and why it failed, or, without arguments, that time has passed."""
        if run is None:
            return
        begin = self.running.pop(run)
        if reason is None and not run.complete:
            self.console.print(f"{run.name}: stopped {_where(run)}", markup=False, soft_wrap=True)
            return
        self.done += 1
        self.seconds.append(time.perf_counter() - begin)
        if reason:
            self.failed[run.name] = reason
        left = self.remaining()
        stage = " of this stage" if self.phase == "learning rates" else ""
        rest = f"; about {duration(left)}{stage} left" if left else ""
        count = f"{self.phase} [{self.done}/{len(self.runs)}]".lstrip()
        said = f"failed: {reason}" if reason else self._value(run)
        self.console.print(f"{count} {run.name}: {said}{rest}", markup=False, soft_wrap=True)
        self.show_table()

    def show_table(self) -> None:
        """Show the table so far, where a seed has just become complete and more are to come."""
        if self.done % self.per_seed == 0 and self.done < len(self.runs) and (text := self._table()):
            self.console.print(text, markup=False, soft_wrap=True)

    def _table(self) -> str:
        """Return the table so far; nothing while rates are tried, since no run has read the test split then."""
        known = self.phase != "learning rates" and any(run.latest().result for run in self.runs)
        return table(self.folder, self.manifest) if known else ""

    def remaining(self) -> float | None:
        """Return the seconds that are left, by the runs so far; ``None`` while none has ended, 0 at the end."""
        left = len(self.runs) - self.done
        if not left:
            return 0.0
        if not self.seconds:
            return None
        each, now = sum(self.seconds) / len(self.seconds), time.perf_counter()
        spent = sum(min(now - begin, each) for begin in self.running.values())
        return max(left * each - spent, 0.0) / max(min(self.places or len(self.running), left), 1)

    def _value(self, run: Run) -> str:
        result, metric = run.latest().result, self.manifest["metric"]
        assert result is not None
        name = metric if metric in result["metrics"] else "val/" + metric.partition("/")[2]
        shown = f"{name} {result['metrics'][name]:.4g}, " if name in result["metrics"] else ""
        return f"{shown}{duration(result['seconds'])}"


class Screen(Lines):
    """Keeps one live picture below the lines: what runs with its epoch, what is left, and the table so far."""

    def __init__(self, console: Console, *arguments: Any) -> None:
        super().__init__(console, *arguments)
        self.table = self._table()
        self.live = Live(self._picture(), console=console, auto_refresh=False, transient=True)

    def ended(self, run: Run | None = None, reason: str | None = None) -> None:
        super().ended(run, reason)
        self.live.update(self._picture(), refresh=True)

    def show_table(self) -> None:
        self.table = self._table()

    def _picture(self) -> RenderableType:
        total = self.manifest["configuration"].get("trainer.max_epochs")
        lines = []
        for run, begin in self.running.items():
            at = epoch(run)
            where = "starting" if at is None else f"epoch {at}" + (f" of {total}" if total and total > 0 else "")
            lines.append(f"  {run.name}: {where}, {duration(time.perf_counter() - begin)}")
        left, waiting = self.remaining(), len(self.runs) - self.done - len(self.running)
        lines.append(f"  {waiting} waiting" + (f"; about {duration(left)} left" if left else ""))
        return Group(*([Markdown(self.table)] if self.table else []), Text("\n".join(lines)))


def _where(run: Run) -> str:
    """Return where a run was stopped."""
    checkpoint = last_checkpoint(run.folder)
    if checkpoint is None:
        return "before its first validation"
    try:
        return f"after step {read_checkpoint(checkpoint)['global_step']}"
    except StructuredInitError as error:  # whole, and what it holds is not run without being asked to
        return f"({error})"


@contextlib.contextmanager
def following(
    console: Console, folder: Path, manifest: Manifest, runs: Sequence[Run], places: int, phase: str = ""
) -> Iterator[Lines]:
    """Give what follows the runs: a live picture in a terminal, plain lines elsewhere."""
    given = (console, folder, manifest, runs, places, phase)
    if not console.is_terminal:
        yield Lines(*given)
        return
    screen = Screen(*given)
    with screen.live:
        yield screen


def table(folder: Path, manifest: Manifest) -> str:
    """Return the headline table of what is complete, in Markdown."""
    from comparison.results.headline import headline_tables, look
    from comparison.results.place import count_successes
    from comparison.results.records import load_curves

    found, threshold = look(folder, manifest), manifest.get("success")
    if threshold is not None:
        found = count_successes(found, threshold, load_curves(folder))
    return headline_tables(found)


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

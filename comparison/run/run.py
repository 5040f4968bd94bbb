"""One run: train it, or go on with it where it was killed, test it, and write its result."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden

from callbacks import ElapsedTime
from callbacks.lightning_private import finish_when_done
from comparison.results.run_record import read_json
from comparison.run.environment import environment
from comparison.run.resolve import BuildOnly
from comparison.run.stopping import SHARE, StopAfterShare, StopAtDeadline, Stopped, last_file, paused_file
from comparison.run.time_limit import DEADLINE, reached
from lightning_modules.cli.config_names import expand
from lightning_modules.cli.lightning_cli import CLI
from lightning_modules.cli.show import Runner
from lightning_modules.tasks.checkpoint import checkpoints_in, read_checkpoint
from structured_init.errors import StructuredInitError
from structured_init.files import write_json


@dataclass(frozen=True, eq=False)
class Run:
    """One training run.

    Attributes:
        folder: where its metrics, report, maps and checkpoints go; settings and log stand beside it.
        settings: what it is: arm, seed, point, learning rate, threads, identity, and the command line that makes it.
        tested: whether the test split is read; not before a learning rate is chosen.
        share: of its steps after which it is ended for now; 1 trains it to the end.
    """

    folder: Path
    settings: Mapping[str, Any]
    tested: bool = True
    share: float = 1.0

    @property
    def name(self) -> str:
        """How messages name it."""
        rate = self.settings["learning_rate"]
        point = [f"{key.rpartition('.')[2]} {value}" for key, value in self.settings["point"].items()]
        rates = [] if rate is None else [f"learning rate {rate}"]
        return ", ".join([self.settings["arm"], *point, *rates, f"seed {self.settings['seed']}"])

    @property
    def result_file(self) -> Path:
        """Exists once the run is complete."""
        return self.folder / "result.json"

    @property
    def failure_file(self) -> Path:
        """Exists where the run stopped with an error."""
        return self.beside("failed.json")

    @property
    def result(self) -> dict[str, Any] | None:
        """What the run gave, if it is complete."""
        return read_json(self.result_file) if self.result_file.is_file() else None

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do."""
        result = self.result
        if result is None:
            return self.paused is not None
        return not self.tested or result["tested"]

    @property
    def paused(self) -> dict[str, Any] | None:
        """What the run gave at its share of the steps, where it was ended for now there: ``metrics``, ``seconds``."""
        path = paused_file(self.folder)
        known = read_json(path) if self.share < 1 and path.is_file() else {}
        return known.get(repr(self.share))

    def beside(self, ending: str) -> Path:
        """Return a file beside the folder: Lightning's loggers want theirs empty."""
        return self.folder.with_name(f"{self.folder.name}.{ending}")


def train(run: Run) -> None:
    """Do what is left of a run, in this process; where a deadline comes first, leave a checkpoint to go on from.

    Raises:
        StructuredInitError: an expected mistake; anything else that Lightning and the task raise goes through.
    """
    if run.complete or reached():
        return
    write_json(run.beside("settings.json"), dict(run.settings))
    begin = time.perf_counter()
    with contextlib.suppress(Stopped), _ending_after(run.share):
        result = run.result or _fit(run, begin)  # a result without the test split: the learning rate is chosen now
        if run.tested and not result["tested"]:
            _test(run, result, begin)


@contextlib.contextmanager
def _ending_after(share: float) -> Iterator[None]:
    """Let the processes of a run know after which share of its steps it ends for now."""
    if share < 1:
        os.environ[SHARE] = repr(share)
    try:
        yield
    finally:
        os.environ.pop(SHARE, None)


def last_checkpoint(folder: Path) -> Path | None:
    """Return the latest checkpoint of a run that is whole, if there is one."""
    whole, _ = checkpoints_in(folder / "checkpoints")
    return whole[0] if whole else None


def set_aside(run: Run) -> str | None:
    """Rename what is damaged of a run that was stopped, and say in one line what it goes on from; nothing is removed.

    Without a whole checkpoint it is the run's folder that is renamed: the run begins anew.
    """
    whole, damaged = checkpoints_in(run.folder / "checkpoints")
    if not damaged:
        return None
    renamed = [_renamed(path) for path in (damaged if whole else [run.folder])]
    names = ", ".join(f"'{path.name}'" for path in damaged)
    then = f"it goes on from '{whole[0].name}'" if whole else "it begins anew"
    kept = ", ".join(f"'{path}'" for path in renamed)
    return f"{run.name}: damaged: {names}, kept as {kept}: {then}"


def _renamed(path: Path) -> Path:
    """Rename what is damaged to a name that is free."""
    names = (path.with_name(f"{path.name}.damaged{number or ''}") for number in itertools.count())
    return path.rename(next(name for name in names if not name.exists()))


def _fit(run: Run, begin: float) -> dict[str, Any]:
    """Train from the last checkpoint, or from nothing; return the result, which a run without a test ends with.

    Raises:
        StructuredInitError: the checkpoint holds objects whose code would have to be run; it is left as it is.
    """
    if said := set_aside(run):
        print(said, file=sys.stderr)
    checkpoint = last_checkpoint(run.folder)
    if checkpoint is None:
        shutil.rmtree(run.folder, ignore_errors=True)  # what a killed run left would stand among this one's
    else:
        for part in checkpoint.parent.glob(".*.ckpt"):  # of one that a kill has cut off
            part.unlink()
    resumed = [] if checkpoint is None else ["--ckpt_path", str(checkpoint)]
    trainer, metrics = perform(("fit", "test") if run.tested else ("fit",), [*run.settings["arguments"], *resumed])
    clocks = [each for each in trainer.callbacks if isinstance(each, ElapsedTime)]
    result = {
        **{name: run.settings[name] for name in ("arm", "seed", "point", "learning_rate")},
        "metrics": metrics,
        "epochs": trainer.current_epoch,
        "steps": trainer.global_step,
        "seconds": math.fsum(each.earlier for each in clocks) + time.perf_counter() - begin,
        "initialization_seconds": math.fsum(each.initialization for each in clocks),
        "tested": run.tested,
        "environment": environment(),
    }
    write_json(run.result_file, result)
    return result


def _test(run: Run, result: dict[str, Any], begin: float) -> None:
    """Read the test split for a run that was trained before."""
    _, metrics = perform(("test",), run.settings["arguments"])
    result["metrics"] |= metrics
    result["seconds"] += time.perf_counter() - begin
    write_json(run.result_file, {**result, "tested": True})


def perform(steps: Sequence[str], arguments: Sequence[str]) -> tuple[Trainer, dict[str, float]]:
    """Do steps of a run, on every rank of its strategy; return the trainer and the final metrics.

    Args:
        steps: ``"fit"``, ``"test"`` or both; a test alone takes the run's last checkpoint.
        arguments: of the command line.

    Raises:
        Stopped: on every rank, where the deadline came first.
    """
    with _ranks_perform(steps, arguments):
        cli = (_Finishing if "fit" in steps else BuildOnly)(expand(arguments))
        last = last_file(cli.trainer)
        metrics: dict[str, float] = {}
        if "fit" in steps:
            _save_last(cli.trainer, last)
            values = cli.trainer.callback_metrics.items()
            metrics |= {name: float(value) for name, value in values if name.startswith("val/")}
            if "test" in steps and cli.trainer.strategy.broadcast(reached()):
                raise Stopped
        if "test" in steps:
            metrics |= _test_metrics(cli, **({} if "fit" in steps else {"ckpt_path": str(last)}))
        return cli.trainer, metrics


@contextlib.contextmanager
def _ranks_perform(steps: Sequence[str], arguments: Sequence[str]) -> Iterator[None]:
    """Let a strategy of several processes start the others in the same steps: it starts the main module again."""
    main, words = sys.modules["__main__"], sys.argv
    spec = main.__spec__
    main.__spec__ = importlib.util.find_spec("comparison.run.rank")
    sys.argv = [words[0], "+".join(steps), *arguments]
    try:
        yield
    finally:
        main.__spec__, sys.argv = spec, words


def _save_last(trainer: Trainer, last: Path) -> None:
    """Make the checkpoint of the end of a training, where a run that ends inside an epoch has none."""
    step = None
    with contextlib.suppress(StructuredInitError):  # there is none, or it holds more than plain data
        step = read_checkpoint(last)["global_step"]
    if trainer.strategy.broadcast(step != trainer.global_step):
        trainer.save_checkpoint(last)


def _test_metrics(cli: CLI, **arguments: Any) -> dict[str, float]:
    """Read the test split; return nothing for a task that has no test."""
    if not (is_overridden("test_step", cli.model) and is_overridden("test_dataloader", cli.datamodule or cli.model)):
        return {}
    parts = cli.trainer.test(cli.model, datamodule=cli.datamodule, verbose=False, **arguments)
    return {name: float(value) for part in parts for name, value in part.items()}


class _Finishing(CLI):
    """Trains, and does what comes at the end of a training in any case."""

    def instantiate_trainer(self, **kwargs: Any) -> Runner:
        trainer = super().instantiate_trainer(**kwargs)
        finish_when_done(trainer)
        if DEADLINE in os.environ:
            trainer.callbacks.append(StopAtDeadline())
        if SHARE in os.environ:
            trainer.callbacks.append(StopAfterShare(float(os.environ[SHARE])))
        return trainer

"""One run, in the process that trains it: trained, or gone on with where it was killed, tested, its result written."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import platform
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from lightning.pytorch import Trainer

from callbacks import ElapsedTime
from callbacks.lightning_private import finish_when_done
from comparison.plan.experiment import lacks
from comparison.runs.folder import Run
from comparison.train.time_limit import StopAtDeadline, Stopped, last_file
from lightning_modules.cli.configurations import expand
from lightning_modules.cli.lightning_cli import CLI, BuildOnly
from lightning_modules.cli.show import Runner
from lightning_modules.tasks.checkpoint import checkpoints_in, read_checkpoint
from structured_init.util.errors import StructuredInitError, one_line
from structured_init.util.files import made_by

LIBRARIES = ("torch", "torchvision", "lightning", "timm", "transformers", "datasets")
HELD = "another process trains it"


def execute(run: Run, deadline: float = math.inf) -> str | None:
    """Train a run in a process that does nothing else; return why it failed, in one line, None if it did not.

    All that the process and its children print is in the run's log. Where another process trains the run, ``HELD`` is
    returned at once.
    """
    try:
        with _lock_of(run), run.beside(".log").open("a", encoding="utf-8") as log:
            for stream in (1, 2):
                os.dup2(log.fileno(), stream)
            torch.set_num_threads(run.threads)
            return attempt(run, deadline)
    except Timeout:
        return HELD
    except OSError as error:  # of the log: the folder cannot be written to
        return run.write_failure(f"cannot write '{error.filename or run.beside('.log')}': {error.strerror or error}")


def attempt(run: Run, deadline: float = math.inf) -> str | None:
    """Train a run; return and write down why it failed, None if it did not."""
    try:
        train(run, deadline)
    except StructuredInitError as error:
        return run.write_failure(one_line(error))
    except Exception as error:  # a bug, or what a library raised: it must not stop the other runs
        traceback.print_exc()
        reason = f"{type(error).__name__}: {one_line(error)}".removesuffix(": ")
        return run.write_failure(reason[:500], traceback.format_exc())
    run.failure_file.unlink(missing_ok=True)
    return None


def is_held(run: Run) -> bool:
    """Tell whether a process trains a run, on any machine that shares its folder."""
    try:
        with _lock_of(run):
            return False
    except Timeout:
        return True


def _lock_of(run: Run) -> FileLock:
    """Return the lock of a run, which the system opens when its process ends, however it ends."""
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(run.folder.with_name(f".{run.folder.name}.lock"), timeout=0)


def train(run: Run, deadline: float = math.inf) -> None:
    """Do what is left of a run, in this process; at a deadline (in seconds since 1970), leave a checkpoint."""
    if run.complete or time.time() >= deadline:
        return
    run.write_settings()
    begin = time.perf_counter()
    with contextlib.suppress(Stopped):
        # A result without the test split: the learning rate is chosen now.
        result = run.latest().result or _fit(run, begin, deadline)
        if run.tested and not result["tested"]:
            _, metrics = perform(("test",), run.arguments)
            seconds = result["seconds"] + time.perf_counter() - begin
            metrics = {**result["metrics"], **metrics}
            run.write_result({**result, "metrics": metrics, "seconds": seconds, "tested": True})


def _fit(run: Run, begin: float, deadline: float) -> dict[str, Any]:
    """Train from the last checkpoint, or from nothing; return the result, which a run without a test ends with."""
    whole, damaged = checkpoints_in(run.folder / "checkpoints")
    for path in damaged:
        then = "goes on from what was before it" if whole else "begins anew"
        print(f"'{path}' is damaged: the run {then}", file=sys.stderr)
        path.replace(path.with_name(f"{path.name}.damaged"))  # Lightning would leave it, and write beside it
    arguments = list(run.arguments)
    if not whole:
        shutil.rmtree(run.folder, ignore_errors=True)  # what a killed run left would stand among this one's
    else:
        arguments += ["--ckpt_path", str(whole[0])]
        for part in whole[0].parent.glob(".*.ckpt"):  # of one that a kill has cut off
            part.unlink()
    steps = ("fit", "test") if run.tested else ("fit",)
    trainer, metrics = perform(steps, arguments, deadline)
    clocks = [each for each in trainer.callbacks if isinstance(each, ElapsedTime)]
    result = {
        "metrics": metrics,
        "epochs": trainer.current_epoch,
        "steps": trainer.global_step,
        "seconds": math.fsum(each.earlier for each in clocks) + time.perf_counter() - begin,
        "initialization_seconds": math.fsum(each.initialization for each in clocks),
        "tested": run.tested,
        "environment": environment(),
    }
    run.write_result(result)
    return result


def environment() -> dict[str, str | int]:
    """Return the processor, the threads of this process and the versions of what computes: what a number depends on."""
    processor, information = platform.machine(), Path("/proc/cpuinfo")
    if torch.cuda.is_available():
        processor = torch.cuda.get_device_name()
    elif information.exists():
        lines = [line for line in information.read_text().splitlines() if line.startswith("model name")]
        processor = lines[0].partition(":")[2].strip() if lines else processor
    return {
        "processor": processor,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "structured-init": made_by(),
        **{name: version(name) for name in LIBRARIES},
    }


# On every rank --------------------------------------------------------------------------------------------------------


def perform(
    steps: Sequence[str], arguments: Sequence[str], deadline: float = math.inf
) -> tuple[Trainer, dict[str, float]]:
    """Do steps of a run, on every rank of its strategy; return the trainer and final metrics."""
    with _ranks_perform("+".join(steps), repr(deadline), str(os.getpid()), *arguments):
        if "fit" not in steps:
            cli = BuildOnly(expand(arguments))
            return cli.trainer, _test_metrics(cli, ckpt_path=str(last_file(cli.trainer)))
        cli = _Training(expand(arguments), deadline)
        trainer = cli.trainer
        _save_end(trainer)
        values = trainer.callback_metrics.items()
        metrics = {name: float(value) for name, value in values if name.startswith("val/")}
        if "test" in steps:
            stops = [each for each in trainer.callbacks if isinstance(each, StopAtDeadline)]
            if trainer.strategy.broadcast(any(time.time() >= each.deadline for each in stops)):
                raise Stopped
            metrics |= _test_metrics(cli)
        return trainer, metrics


def _save_end(trainer: Trainer) -> None:
    """Save the end of a training, of which one that ends inside an epoch has no checkpoint."""
    last, step = last_file(trainer), None
    with contextlib.suppress(StructuredInitError):  # there is none, or it holds more than plain data
        step = read_checkpoint(last)["global_step"]
    if trainer.strategy.broadcast(step != trainer.global_step):
        trainer.save_checkpoint(last)


@contextlib.contextmanager
def _ranks_perform(*words: str) -> Iterator[None]:
    """Let a strategy of several processes start the others in the same steps.

    Lightning starts them with the main module and the command line of this process, and offers no other way to say
    what they are to do: both are this module's meanwhile, which ends with what it does as a main module.
    """
    main, before = sys.modules["__main__"], sys.argv
    spec = main.__spec__
    main.__spec__ = importlib.util.find_spec("comparison.train.run")
    sys.argv = [before[0], *words]
    try:
        yield
    finally:
        main.__spec__, sys.argv = spec, before


def _test_metrics(cli: CLI, **arguments: Any) -> dict[str, float]:
    """Read the test split; return nothing for a task that has no test."""
    if lacks(cli, "test"):
        return {}  # values of the validation split are compared
    parts = cli.trainer.test(cli.model, datamodule=cli.datamodule, verbose=False, **arguments)
    return {name: float(value) for part in parts for name, value in part.items()}


class _Training(CLI):
    """Trains until a deadline, and does what comes at the end of a training in any case."""

    def __init__(self, args: list[str], deadline: float) -> None:
        self.deadline = deadline
        super().__init__(args)

    def instantiate_trainer(self, **kwargs: Any) -> Runner:
        trainer = super().instantiate_trainer(**kwargs)
        finish_when_done(trainer)
        if math.isfinite(self.deadline):
            trainer.callbacks.append(StopAtDeadline(self.deadline))
        return trainer


def _end_with(parent: int) -> None:
    """End this process as soon as the first rank is gone, however it went: nobody else would."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":  # a further process of a run whose strategy has several
    threading.Thread(target=_end_with, args=(int(sys.argv[3]),), daemon=True).start()
    with contextlib.suppress(Stopped):  # as on the first rank; an error would make Lightning kill that one
        perform(sys.argv[1].split("+"), sys.argv[4:], float(sys.argv[2]))

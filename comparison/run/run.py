"""One run, in the process that trains it: trained, or gone on with where it was killed, tested, its result written."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import math
import os
import platform
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence, Sized
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from lightning.pytorch import Callback, Trainer

from callbacks import ElapsedTime
from callbacks.lightning_private import finish_when_done
from comparison.results.folder import Run
from comparison.run.resolve import lacks
from comparison.run.stopping import NeedsValidation, StopAtDeadline, Stopped, last_file
from comparison.run.time_limit import now
from lightning_modules.cli.configurations import expand
from lightning_modules.cli.lightning_cli import CLI, BuildOnly
from lightning_modules.cli.show import Runner
from lightning_modules.tasks.checkpoint import checkpoints_in, read_checkpoint
from structured_init.util.errors import StructuredInitError, one_line
from structured_init.util.files import made_by

LIBRARIES = ("torch", "torchvision", "lightning", "timm", "transformers", "datasets")


def execute(run: Run, deadline: float = math.inf) -> str | None:
    """Train a run with everything it prints in its log; return why it failed, in one line; ``None`` if it did not."""
    try:
        with _output_to(run):
            torch.set_num_threads(run.threads)
            try:
                train(run, deadline)
            except StructuredInitError as error:
                return run.write_failure(one_line(error))
            except Exception as error:  # a bug, or what a library raised: it must not stop the other runs
                traceback.print_exc()
                message = one_line(error)
                reason = type(error).__name__ + (f": {message}" if message else "")
                return run.write_failure(reason[:500], traceback.format_exc())
            run.failure_file.unlink(missing_ok=True)
            return None
    except OSError as error:  # of the log: the folder cannot be written to
        return run.write_failure(f"cannot write '{error.filename or run.beside('.log')}': {error.strerror or error}")


@contextlib.contextmanager
def _output_to(run: Run) -> Iterator[None]:
    """Send what this process and its children print to the run's log, which only one process at a time can hold."""
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    # A worker of a killed comparison may still be about to end.
    with (
        FileLock(run.folder.with_name(f".{run.folder.name}.lock")),
        run.beside(".log").open("a", encoding="utf-8") as log,
    ):
        sys.stdout.flush()
        sys.stderr.flush()
        kept = [(stream, os.dup(stream)) for stream in (1, 2)]
        try:
            for stream, _ in kept:
                os.dup2(log.fileno(), stream)
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for stream, copy in kept:
                os.dup2(copy, stream)
                os.close(copy)


def train(run: Run, deadline: float = math.inf) -> None:
    """Do what is left of a run, in this process; at a deadline (in seconds since 1970), leave a checkpoint."""
    if run.complete or now() >= deadline:
        return
    run.write_settings()
    begin = time.perf_counter()
    with contextlib.suppress(Stopped):
        # A result without the test split: the learning rate is chosen now.
        result = run.latest().result or _fit(run, begin, deadline)
        if run.tested and not result["tested"]:
            _, metrics, _ = perform(("test",), run.arguments)
            seconds = result["seconds"] + time.perf_counter() - begin
            run.write_result(
                {**result, "metrics": {**result["metrics"], **metrics}, "seconds": seconds, "tested": True}
            )


def _fit(run: Run, begin: float, deadline: float) -> dict[str, Any]:
    """Train from the last checkpoint, or from nothing; return the result, which a run without a test ends with."""
    if said := set_aside(run):
        print(said, file=sys.stderr)
    checkpoint = last_checkpoint(run.folder)
    if checkpoint is None:
        shutil.rmtree(run.folder, ignore_errors=True)  # what a killed run left would stand among this one's
    else:
        for part in checkpoint.parent.glob(".*.ckpt"):  # of one that a kill has cut off
            part.unlink()
    resumed = [] if checkpoint is None else ["--ckpt_path", str(checkpoint)]
    steps = ("fit", "test") if run.tested else ("fit",)
    trainer, metrics, samples = perform(steps, [*run.arguments, *resumed], deadline)
    clocks = [each for each in trainer.callbacks if isinstance(each, ElapsedTime)]
    result = {
        "metrics": metrics,
        "epochs": trainer.current_epoch,
        "steps": trainer.global_step,
        "training_samples": samples,
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
    renamed = []
    for path in damaged if whole else [run.folder]:
        free = (path.with_name(f"{path.name}.damaged{number or ''}") for number in itertools.count())
        renamed.append(path.rename(next(name for name in free if not name.exists())))
    names = ", ".join(f"'{path.name}'" for path in damaged)
    then = f"it goes on from '{whole[0].name}'" if whole else "it begins anew"
    kept = ", ".join(f"'{path}'" for path in renamed)
    return f"{run.name}: damaged: {names}, kept as {kept}: {then}"


# On every rank --------------------------------------------------------------------------------------------------------


def perform(
    steps: Sequence[str], arguments: Sequence[str], deadline: float = math.inf
) -> tuple[Trainer, dict[str, float], int | None]:
    """Do steps of a run, on every rank of its strategy; return the trainer, final metrics and training samples."""
    with _ranks_perform("+".join(steps), repr(deadline), str(os.getpid()), *arguments):
        decides = "test" not in steps  # a learning rate, or a place in a race
        fit = "fit" in steps
        cli = _Training(expand(arguments), deadline, decides) if fit else BuildOnly(expand(arguments))
        last = last_file(cli.trainer)
        metrics: dict[str, float] = {}
        samples = None
        if "fit" in steps:
            loader, trainer = cli.trainer.train_dataloader, cli.trainer
            trained_on, size = getattr(loader, "dataset", None), getattr(loader, "batch_size", None) or math.inf
            if isinstance(trained_on, Sized):
                batch, batches = size * trainer.world_size, min(trainer.num_training_batches, len(trained_on))
                together = trainer.accumulate_grad_batches  # but for the last of an epoch
                epochs, steps_since = divmod(trainer.global_step, max(1, math.ceil(batches / together)))
                seen = (epochs * batches + min(steps_since * together, batches)) * batch
                cut = (batches + 1) * batch <= len(trained_on) and seen > batches * batch  # each takes another part
                samples = None if cut else min(len(trained_on), seen)  # of a short run, fewer
            step = None  # a run that ends inside an epoch has no checkpoint of its end
            with contextlib.suppress(StructuredInitError):  # there is none, or it holds more than plain data
                step = read_checkpoint(last)["global_step"]
            if cli.trainer.strategy.broadcast(step != cli.trainer.global_step):
                cli.trainer.save_checkpoint(last)
            values = cli.trainer.callback_metrics.items()
            metrics |= {name: float(value) for name, value in values if name.startswith("val/")}
            stops = [each for each in cli.trainer.callbacks if isinstance(each, StopAtDeadline)]
            if "test" in steps and cli.trainer.strategy.broadcast(any(now() >= each.deadline for each in stops)):
                raise Stopped
        if "test" in steps:
            metrics |= _test_metrics(cli, **({} if "fit" in steps else {"ckpt_path": str(last)}))
        return cli.trainer, metrics, samples


@contextlib.contextmanager
def _ranks_perform(*words: str) -> Iterator[None]:
    """Let a strategy of several processes start the others in the same steps.

    Lightning starts them with the main module and the command line of this process, and offers no other way to say
    what they are to do: both are this module's meanwhile, which ends with what it does as a main module.
    """
    main, before = sys.modules["__main__"], sys.argv
    spec = main.__spec__
    main.__spec__ = importlib.util.find_spec("comparison.run.run")
    sys.argv = [before[0], *words]
    try:
        yield
    finally:
        main.__spec__, sys.argv = spec, before


def _test_metrics(cli: CLI, **arguments: Any) -> dict[str, float]:
    """Read the test split; return nothing for a task that has no test."""
    if not getattr(cli.datamodule, "has_test", True) or lacks(cli, "test"):
        return {}  # values of the validation split are compared
    parts = cli.trainer.test(cli.model, datamodule=cli.datamodule, verbose=False, **arguments)
    return {name: float(value) for part in parts for name, value in part.items()}


class _Training(CLI):
    """Trains until a deadline, and does what comes at the end of a training in any case."""

    def __init__(self, args: list[str], deadline: float, decides: bool) -> None:
        self.stops: list[Callback] = [NeedsValidation()] if decides else []
        self.stops += [StopAtDeadline(deadline)] if math.isfinite(deadline) else []
        super().__init__(args)

    def instantiate_trainer(self, **kwargs: Any) -> Runner:
        trainer = super().instantiate_trainer(**kwargs)
        finish_when_done(trainer)
        trainer.callbacks.extend(self.stops)
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

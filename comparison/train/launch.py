"""Where runs are trained: in processes of this machine, or on a Ray cluster.

Importing the libraries takes longer than a short run. So a run of this machine is forked from a process that has
imported them once, where the system can fork. Several commands may train one comparison at the same time: a run that
one of them holds is left to it by the others.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, Protocol
from unittest.mock import patch

import torch

from comparison.runs.folder import Run
from comparison.train.progress import Progress
from comparison.train.run import HELD, execute, is_held
from comparison.train.time_limit import UNLIMITED, TimeLimit
from structured_init.util.errors import StructuredInitError

Ended = tuple[Run, str | None]  # a run, and why it failed
# What the process that others are forked from has imported: all that a run does, the first step of an optimizer too.
WARM = ["matplotlib.backends.backend_agg", "torch._dynamo", "comparison.train.run", "lightning_modules.data"]
# After a process was killed, multiprocessing warns on the terminal of what it had shared.
QUIET = {"PYTHONWARNINGS": f"{os.environ.get('PYTHONWARNINGS', '')},ignore:resource_tracker".lstrip(",")}


class Launcher(Protocol):
    """Trains runs somewhere."""

    def start(self, run: Run) -> None:
        """Start a run; there is a free place."""

    def free(self) -> bool:
        """Tell whether one more run can be started."""

    def wait(self, seconds: float) -> list[Ended]:
        """Return what has ended, after waiting for so long at most."""

    def close(self) -> None:
        """End everything that still runs, at once."""


def launch(runs: Sequence[Run], launcher: Launcher, progress: Progress, limit: TimeLimit = UNLIMITED) -> None:
    """Train runs in their order, as many at a time as there are places; wait for those that other commands train."""
    waiting = list(runs)
    running = 0
    while time.time() < limit.end:
        may_start = time.time() < limit.deadline
        while may_start and launcher.free() and (run := _take(waiting, progress)):
            launcher.start(run)
            running += 1
        if not running and not (waiting and may_start):
            return
        for run, reason in launcher.wait(1.0):
            running -= 1
            if reason == HELD:
                waiting.append(run)
            else:
                progress.ended(run, reason)


def _take(waiting: list[Run], progress: Progress) -> Run | None:
    """Return the next run that nobody trains, no longer waiting; None where others train all that are left."""
    for run in list(waiting):
        if run.complete or run.failure_file.is_file():  # another command has trained it meanwhile
            waiting.remove(run)
            progress.ended(run, run.latest().failure)
        elif not is_held(run):
            waiting.remove(run)
            return run
    return None


class _Training(NamedTuple):
    """A process that trains a run."""

    run: Run
    process: Any
    answer: Connection  # gives why the run failed, None where it did not
    devices: str  # those of its place, as ``CUDA_VISIBLE_DEVICES`` has them


class LocalLauncher:
    """Trains each run in a process of its own.

    Where the system can fork, processes come from one that has imported the libraries and done nothing else. It begins
    when the launcher is made, beside whatever comes before the first run.
    """

    def __init__(self, places: int, threads: int, gpus: float = 0, deadline: float = math.inf) -> None:
        if gpus != int(gpus) or places * gpus > (torch.cuda.device_count() if gpus else 0):
            raise StructuredInitError(
                f"--gpus-per-run {gpus:g} for {places} runs at a time: this machine has {torch.cuda.device_count()}, "
                "and a part of one is for --launcher ray"
            )
        self._deadline = deadline
        self._context = _begin_forking(threads)
        self._trainings: list[_Training] = []
        shared, of_each = visible_devices(), int(gpus)
        self._free = [",".join(shared[place * of_each : (place + 1) * of_each]) for place in range(places)]

    def free(self) -> bool:
        return bool(self._free)

    def start(self, run: Run) -> None:
        devices = self._free.pop(0)
        answer, theirs = self._context.Pipe(duplex=False)
        environment = dict(os.environ)  # one that is forked has the variables of when the first was begun
        if devices:
            environment["CUDA_VISIBLE_DEVICES"] = devices
        # No daemon: its loaders have workers.
        process = self._context.Process(target=_train, args=(run, self._deadline, environment, theirs))
        process.start()
        theirs.close()
        self._trainings.append(_Training(run, process, answer, devices))

    def wait(self, seconds: float) -> list[Ended]:
        wait([each.process.sentinel for each in self._trainings], seconds)
        ended = [each for each in self._trainings if not each.process.is_alive()]
        for each in ended:
            self._trainings.remove(each)
            self._free.append(each.devices)
        return [(each.run, _failure(each)) for each in ended]

    def close(self) -> None:
        for each in self._trainings:
            each.process.kill()  # files are replaced, never half written: nothing is lost
        for each in self._trainings:
            each.process.join()


def _failure(training: _Training) -> str | None:
    """Return why a run has failed whose process has ended; None where it did not."""
    training.process.join()
    try:
        return training.answer.recv()
    except EOFError:  # it ended without an answer
        return training.run.write_failure(how_it_died(training.process.exitcode))


def _begin_forking(threads: int) -> Any:
    """Return how processes are begun, and begin the one that the others are forked from."""
    if sys.platform != "linux":  # elsewhere system libraries may not be forked
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(WARM)
    with patch.dict(os.environ, {"OMP_NUM_THREADS": str(threads), **QUIET}):
        resource_tracker.ensure_running()  # beginning, it would let through what is held back here
        # Ctrl-C reaches all of a terminal. The process that begins here and all that is forked inherit what is held.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


def visible_devices() -> list[str]:
    """Return the names of this machine's CUDA devices, those alone that this process may use."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",") if given else [str(device) for device in range(torch.cuda.device_count())]


def how_it_died(exitcode: int | None) -> str:
    """Return why a process is gone, in one line."""
    if exitcode is None or exitcode >= 0:
        return f"its process ended with exit code {exitcode}; the end of its log may say why"
    name = signal.Signals(-exitcode).name
    by_whom = ", by somebody, a scheduler, or the system where memory ran out" if name == "SIGKILL" else ""
    return f"its process was ended by {name}{by_whom}"


def _train(run: Run, deadline: float, environment: dict[str, str], answer: Connection) -> None:
    """Train a run and answer why it failed; be gone as soon as the comparison is, however it went."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the comparison ends its processes
    os.environ.clear()
    os.environ.update(environment)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    answer.send(execute(run, deadline))


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)

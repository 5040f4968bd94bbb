"""Where runs are trained: in processes of this machine, or on a Ray cluster.

Ray alone would do both, and is what a cluster needs. On one machine it would be a dependency of everyone's, it takes
seconds to start, and its workers import every library anew; here a run is forked from a process that has imported them
once. submitit hands scripts to SLURM, which ``srun structured-init compare --time-limit`` does without it.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol
from unittest.mock import patch

import torch

from comparison.results.folder import Run
from comparison.run.run import execute
from comparison.run.time_limit import UNLIMITED, TimeLimit, now
from structured_init.util.errors import StructuredInitError

Ended = tuple[Run, str | None]  # a run, and why it failed
# What the process that others are forked from has imported: all that a run does, the first step of an optimizer too.
WARM = ["matplotlib.backends.backend_agg", "torch._dynamo", "comparison.run.run", "lightning_modules.data"]
# After a process was killed, multiprocessing warns on the terminal of what it had shared.
QUIET = {"PYTHONWARNINGS": ",".join(filter(None, [os.environ.get("PYTHONWARNINGS"), "ignore:resource_tracker"]))}


class Launcher(Protocol):
    """Trains runs somewhere."""

    places: int  # runs at a time; 0 where that is not known

    def start(self, run: Run) -> None:
        """Start a run; there is a free place."""

    def free(self) -> bool:
        """Tell whether one more run can be started."""

    def wait(self, seconds: float) -> list[Ended]:
        """Return what has ended, after waiting for so long at most."""

    def close(self) -> None:
        """End everything that still runs, at once."""


def launch(
    runs: Sequence[Run],
    launcher: Launcher,
    started: Callable[[Run], None],
    ended: Callable[..., None],
    limit: TimeLimit = UNLIMITED,
) -> None:
    """Train runs in their order, as many at a time as there are places."""
    waiting, running = deque(runs), 0
    while now() < limit.end:
        while waiting and launcher.free() and now() < limit.deadline:
            started(waiting[0])
            launcher.start(waiting.popleft())
            running += 1
        if not running:
            return
        for run, reason in launcher.wait(1.0):
            running -= 1
            ended(run, reason)
        ended()


class LocalLauncher:
    """A process per place, which trains one run after the other; one whose run failed or had ranks is replaced.

    Where the system can fork, processes come from one that has imported the libraries and done nothing else. It begins
    when the launcher is made, beside whatever comes before the first run.
    """

    def __init__(self, places: int, threads: int, gpus: float = 0, deadline: float = math.inf) -> None:
        if gpus != int(gpus) or places * gpus > (torch.cuda.device_count() if gpus else 0):
            raise StructuredInitError(
                f"--gpus-per-run {gpus:g} for {places} runs at a time: this machine has {torch.cuda.device_count()}, "
                "and a part of one is for --launcher ray"
            )
        gpus = int(gpus)
        self.places, self._deadline = places, deadline
        self._context = _warm_context(threads)
        devices = visible_devices()
        visible = [",".join(devices[place * gpus : (place + 1) * gpus]) for place in range(places)]
        self._environments = [
            {"OMP_NUM_THREADS": str(threads), **QUIET, **({"CUDA_VISIBLE_DEVICES": names} if gpus else {})}
            for names in visible
        ]
        self._workers: list[_Worker | None] = [None] * places

    def free(self) -> bool:
        return any(worker is None or worker.run is None for worker in self._workers)

    def start(self, run: Run) -> None:
        place = next(i for i, worker in enumerate(self._workers) if worker is None or worker.run is None)
        worker = self._workers[place]
        if worker is not None and worker.spent:
            worker.connection.close()
            worker.process.join()
        if worker is None or not worker.process.is_alive():
            worker = self._workers[place] = _Worker(self._context, self._environments[place], self._deadline)
        worker.start(run)

    def wait(self, seconds: float) -> list[Ended]:
        busy = [worker for worker in self._workers if worker is not None and worker.run is not None]
        wait([source for worker in busy for source in (worker.connection, worker.process.sentinel)], seconds)
        return [ended for worker in busy if (ended := worker.poll()) is not None]

    def close(self) -> None:
        workers = [worker for worker in self._workers if worker is not None]
        for worker in workers:
            if worker.run is None:
                worker.connection.close()  # it ends by itself
            else:
                worker.process.kill()  # files are replaced, never half written: nothing is lost
        for worker in workers:
            worker.process.join(5)
            worker.process.kill()
            worker.process.join()


class _Worker:
    """One process and the run that it trains."""

    def __init__(self, context: Any, environment: dict[str, str], deadline: float) -> None:
        self.connection, theirs = context.Pipe()
        whole = {**os.environ, **environment}  # one that is forked has the variables of when the first was begun
        # No daemon: its loaders have workers.
        self.process = context.Process(target=_serve, args=(theirs, whole, deadline))
        # One that is forked takes after the process it comes from, which may import for seconds before it answers.
        forked = context.get_start_method() == "forkserver"
        with patch.dict(os.environ, environment), contextlib.nullcontext() if forked else _without_interrupts():
            self.process.start()
        theirs.close()
        self.run: Run | None = None
        self.spent = False  # what the run left in it could reach the next one

    def start(self, run: Run) -> None:
        self.run = run
        with contextlib.suppress(OSError):  # the process has died: poll says so
            self.connection.send(run)

    def poll(self) -> Ended | None:
        """Return the run, if it has ended or its process has died."""
        if self.run is None:
            return None
        with contextlib.suppress(EOFError, OSError):
            if self.connection.poll():
                reason, self.spent = self.connection.recv()
                return self._end(reason)
        if self.process.is_alive():
            return None
        self.process.join()
        return self._end(self.run.write_failure(how_it_died(self.process.exitcode)))

    def _end(self, reason: str | None) -> Ended:
        run, self.run = self.run, None
        assert run is not None
        return run, reason


def _warm_context(threads: int) -> Any:
    """Return how processes are begun, and begin the one that the others are forked from."""
    if sys.platform != "linux":  # elsewhere system libraries may not be forked
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(WARM)
    with patch.dict(os.environ, {"OMP_NUM_THREADS": str(threads), **QUIET}):
        resource_tracker.ensure_running()  # beginning, it would let through what is held back here
        with _without_interrupts():
            forkserver.ensure_running()
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
    hint = ": the system kills what takes too much memory" if name == "SIGKILL" else ""
    return f"its process was ended by {name}{hint}"


def _serve(connection: Connection, environment: dict[str, str], deadline: float) -> None:
    """Train what comes, until the comparison ends or is killed."""
    os.environ.clear()
    os.environ.update(environment)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    while True:
        try:
            run = connection.recv()
        except EOFError:
            return
        reason = execute(run, deadline)
        spent = reason is not None or torch.distributed.is_initialized()
        connection.send((reason, spent))
        if spent:
            return


def _end_with(sentinel: int) -> None:
    """End this process as soon as the comparison is gone, however it went."""
    wait([sentinel])
    os._exit(1)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Keep Ctrl-C, which reaches all of a terminal, from processes that begin here: the comparison ends them.

    They inherit what this thread holds back; what comes meanwhile reaches this process afterwards.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

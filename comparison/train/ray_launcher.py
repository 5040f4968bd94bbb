"""Runs on a Ray cluster: every run is one task."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from comparison.runs.folder import Run
from comparison.train.launch import Ended
from comparison.train.run import execute
from structured_init.util.errors import StructuredInitError, one_line


class RayLauncher:
    """Sends runs to a Ray cluster, which starts each where the processors and devices that it asks for are free.

    The comparison's folder has to be one that all nodes share, and this package installed on each.
    """

    def __init__(self, address: str | None, threads: int, cpus: float, gpus: float, deadline: float) -> None:
        ray = import_ray()
        self._ray, self._deadline = ray, deadline
        self._running: dict[Any, Run] = {}
        address = address or os.environ.get("RAY_ADDRESS")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to Ray's makers
        local = {} if address else {"include_dashboard": False, "num_cpus": os.cpu_count()}
        quiet = {"log_to_driver": False, "logging_level": "error", "configure_logging": False}
        try:
            ray.init(address=address or "local", **quiet, **local)
        except Exception as error:  # a refused connection has a dozen kinds
            raise StructuredInitError(f"cannot reach Ray at '{address or 'local'}': {one_line(error)}") from error
        self._places = 0 if address else self._fitting({"CPU": cpus, "GPU": gpus})  # a cluster may grow
        data = {name: os.environ[name] for name in ("STRUCTURED_INIT_DATA", "HF_HUB_OFFLINE") if name in os.environ}
        environment = {"OMP_NUM_THREADS": str(threads), "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", **data}
        self._task = ray.remote(  # max_calls: each run has a process of its own
            num_cpus=cpus, num_gpus=gpus, max_retries=0, max_calls=1, runtime_env={"env_vars": environment}
        )(_execute)

    def _fitting(self, wanted: dict[str, float]) -> int:
        """Return how many runs this machine has room for; refuse what Ray would wait for without end."""
        there = self._ray.cluster_resources()
        for name, share in wanted.items():
            if share > there.get(name, 0):
                self._ray.shutdown()
                raise StructuredInitError(
                    f"--{name.lower()}s-per-run {share:g}: this machine has {there.get(name, 0):g}"
                )
        return int(min(there[name] // share for name, share in wanted.items() if share))

    def free(self) -> bool:
        return not self._places or len(self._running) < self._places  # elsewhere Ray keeps the queue

    def start(self, run: Run) -> None:
        self._running[self._task.remote(run, os.getcwd(), list(sys.path), self._deadline)] = run

    def wait(self, seconds: float) -> list[Ended]:
        if not self._running:
            time.sleep(seconds)
            return []
        done, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        return [(run := self._running.pop(task), self._failure(task, run)) for task in done]

    def close(self) -> None:
        for task in self._running:
            self._ray.cancel(task, force=True)
        self._ray.shutdown()

    def _failure(self, task: Any, run: Run) -> str | None:
        try:
            return self._ray.get(task)
        except self._ray.exceptions.RayError as error:  # its process or its node is gone
            return run.write_failure(f"{type(error).__name__}: {one_line(error)}"[:500])


def import_ray() -> Any:
    """Return the module."""
    try:
        import ray
    except ImportError:
        raise StructuredInitError("--launcher ray needs Ray: pip install 'structured-init[ray]'") from None
    return ray


def _execute(run: Run, folder: str, path: Sequence[str], deadline: float) -> str | None:
    """Train a run in one of Ray's processes, which knows neither the folder nor the modules of the command."""
    if os.path.isdir(folder):
        os.chdir(folder)
    sys.path.extend(entry for entry in path if entry not in sys.path)
    return execute(run, deadline)

"""Processes that start warm: forked from one server that has imported torch, Lightning and the model libraries once.

A new interpreter needs 7 CPU seconds for these imports, every time. The server is a process of its own, so that nothing
of the tests' state is in what it forks; it imports none of this project's files.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import runpy
import socket
import sys
import warnings
from multiprocessing.pool import Pool
from multiprocessing.process import BaseProcess
from pathlib import Path

LIBRARIES = ["torch", "lightning.pytorch", "timm", "transformers", "torchmetrics", "datasets", "warm_process"]
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(LIBRARIES)


def start(
    script: str | Path, arguments: list[str], environment: dict[str, str], folder: Path, log: Path
) -> BaseProcess:
    """Run a script as ``python script arguments`` would, from a folder, with all that it prints in ``log``."""
    process = _CONTEXT.Process(target=_run, args=(str(script), arguments, environment, str(folder), str(log)))
    with _imported_as_a_module():
        process.start()
    return process


@contextlib.contextmanager
def _imported_as_a_module():
    main, spec = sys.modules["__main__"], sys.modules["__main__"].__spec__
    file = main.__dict__.pop("__file__", None)
    main.__spec__ = None
    try:
        yield
    finally:
        main.__spec__ = spec
        if file is not None:
            main.__file__ = file


def pool() -> Pool:
    """Return a pool of one process, to measure what a function of a module does in a process of its own."""
    with _imported_as_a_module():
        return _CONTEXT.Pool(1)


def free_port() -> str:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def start_ranks(
    script: str | Path, arguments: list[str], environment: dict[str, str], folder: Path
) -> tuple[list[BaseProcess], list[Path]]:
    """Start a script twice, as the two ranks of one run; give the processes and the files with what they print."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "NODE_RANK": "0", "GLOO_SOCKET_IFNAME": "lo"}
    logs = [folder / f"{rank}.log" for rank in range(2)]
    ranks = [
        start(script, arguments, {**environment, **common, "LOCAL_RANK": str(rank)}, folder, log)
        for rank, log in enumerate(logs)
    ]
    return ranks, logs


def wait(processes: list[BaseProcess], logs: list[Path], seconds: float) -> list[str]:
    """Wait for processes to end; give what they printed, and fail with what those that failed have printed."""
    try:
        for process in processes:
            process.join(seconds)
        codes = [process.exitcode for process in processes]
    finally:
        for process in processes:
            process.kill()
    said = [log.read_text(errors="replace") for log in logs]
    failed = [text[-5000:] for text, code in zip(said, codes, strict=True) if code != 0]
    assert not failed, "\n".join(failed)  # all of them: the first to fail takes the others down
    return said


def _run(script: str, arguments: list[str], environment: dict[str, str], folder: str, log: str) -> None:
    descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.environ.update(environment)
    os.chdir(folder)
    multiprocessing.set_start_method("fork", force=True)  # as in any script; workers would import all anew
    warnings.resetwarnings()
    warnings.simplefilter("ignore" if os.environ.get("PYTHONWARNINGS") == "ignore" else "default")
    import torch

    torch.set_num_threads(1)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")

"""Threads: each number of an initialization is computed by one, and what is independent is computed side by side.

A matrix product or decomposition that is divided among threads adds in another order, and rounds otherwise, for each
number of them; and two libraries' pools of threads get in each other's way. So an initialization runs on one thread,
and pieces that depend on nothing but their own draws stand side by side, as many as torch is given threads.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

import scipy.linalg  # noqa: F401 - its BLAS must be loaded before the pools are listed
import torch
from threadpoolctl import ThreadpoolController

T = TypeVar("T")
ROOM = 2**28  # bytes that jobs side by side may take whatever the size of a layer


class _Blas:
    """Numpy's and scipy's BLAS, which has one thread as long as somebody needs that: its setting is the process'."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                _let_anybody_set()
                self._limit = _pools().limit(limits=1, user_api="blas")
            self._users += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                _let_anybody_set()
                self._limit.restore_original_limits()
                _let_anybody_set()


@functools.cache
def _pools() -> ThreadpoolController:
    return ThreadpoolController()


def _let_anybody_set() -> None:
    """Take from threadpoolctl that OpenBLAS listens to the thread alone which has set it first."""
    for pool in _pools().lib_controllers:
        if clear := getattr(pool, "clear_controlling_thread", None):
            clear(force=True)


_BLAS = _Blas()
_TORCH = threading.Lock()
_HERE = threading.local()  # threads: how many torch had here before it was given one


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute the block on one thread, torch's and BLAS' both, so that its bits do not depend on how many there are.

    Torch's setting changes for the calling thread alone, that of BLAS for the process. Both are restored.
    """
    if getattr(_HERE, "threads", None) is not None:
        yield
        return
    with _BLAS:
        _HERE.threads = torch.get_num_threads()
        try:
            _keep_to_one()
            yield
        finally:
            torch.set_num_threads(_HERE.threads)
            _HERE.threads = None


@contextmanager
def all_threads() -> Iterator[None]:
    """Give a block inside of :func:`one_thread` the threads that were there outside: for running whole networks."""
    threads = getattr(_HERE, "threads", None)
    if threads is None:
        yield
        return
    torch.set_num_threads(threads)
    _HERE.threads = None
    _BLAS.__exit__()
    try:
        yield
    finally:
        _BLAS.__enter__()
        _HERE.threads = threads
        _keep_to_one()


def side_by_side(jobs: Iterable[Callable[[], T]], *, scratch: int, layer: int = 0) -> Iterator[T]:
    """Do independent jobs on as many threads as torch is given, each on one, and yield their results in order.

    Jobs are drawn one by one, in the calling thread, when a thread is free for them, and no more results wait than
    there are threads. With one thread each job is done when its result is asked for. Close the iterator if it is not
    used up.

    Args:
        jobs: functions of tensors of their own; what they draw from is no other's.
        scratch: bytes that a job takes.
        layer: numbers in a layer of the network. Jobs side by side take as much as one layer in float32 or 256 MiB,
            whichever is more.
    """
    with one_thread():
        at_once = min(_HERE.threads, max(ROOM, 4 * layer) // max(scratch, 1))
        if at_once <= 1:
            yield from map(lambda job: job(), jobs)  # a loop's variable would hold one job while the next is drawn
        else:
            yield from _in_pool(iter(jobs), at_once)


def _in_pool(jobs: Iterator[Callable[[], T]], at_once: int) -> Iterator[T]:
    running: deque[Future[T]] = deque()
    with ThreadPoolExecutor(at_once, initializer=_keep_to_one) as pool:
        try:
            more = True
            while more or running:
                busy = [job for job in running if not job.done()]
                if more and len(busy) < at_once and len(running) < 2 * at_once:
                    job = next(jobs, None)
                    more = job is not None
                    if job is not None:
                        running.append(pool.submit(job))
                    del job
                elif running[0].done():
                    yield running.popleft().result()
                else:
                    wait(busy if more else [running[0]], return_when=FIRST_COMPLETED)
        finally:
            for job in running:
                job.cancel()


def _keep_to_one() -> None:
    """Give torch one thread here, and leave it to other threads how many they take.

    A thread takes torch's number when it computes first and keeps it. So the number is set back at once, by a thread
    that ends.
    """
    with _TORCH:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        back = threading.Thread(target=torch.set_num_threads, args=(threads,))
        back.start()
        back.join()

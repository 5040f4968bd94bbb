"""What each task costs a training step beside a bare PyTorch loop over the same model, batches and precision.

    python -m benchmarks.training_overhead --output benchmarks/results
    python -m benchmarks.training_overhead --device cuda --precision bf16-mixed --output runs/overhead

Two copies of one model train on the same batches, a few steps each in turn, in one process, so that whatever else the
machine does falls on both. The bare loop does what training needs: transfer, forward, loss, backward, clipping, the
optimizer, the schedule. The task runs in Lightning's ``Trainer`` with its metrics and ``ExactResume``, which the
command line adds.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import move_data_to_device
from torch.utils.data import DataLoader

from benchmarks.memory import keep_memory
from benchmarks.overhead_cases import CPU, GPU, Case, Examples
from callbacks import ExactResume
from comparison.run.environment import environment
from lightning_modules.tasks.optim import parameter_groups
from lightning_modules.tasks.task import Task
from structured_init.files import write_json, write_text

TURN = {"cpu": 6, "cuda": 30}  # steps
WARMING = 2  # turns that are not counted
BARE, FRAMED = 0, 1
QUIET = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False)


class Turns:
    """Two threads that work in turn, a few steps each.

    The first step of a turn is not timed: it finds the other's data in the processor's caches, which is nobody's
    overhead. A device is waited for where the time is read, at the ends of what is timed, and at no other step.
    """

    def __init__(self, device: str) -> None:
        self.flags = [threading.Semaphore(1), threading.Semaphore(0)]
        self.seconds: list[list[float]] = [[], []]  # per step, a mean over each turn
        self.device, self.length = device, TURN[device]
        self.gone = [False, False]
        self._done = [0, 0]
        self._began = [0.0, 0.0]

    def step(self, who: int) -> None:
        """Begin a step; wait before the first of a turn until the other's turn has ended."""
        place = self._done[who] % self.length
        if place == 0:
            if self._done[who]:
                self.seconds[who].append((self._now() - self._began[who]) / (self.length - 1))
                self.flags[1 - who].release()
            if not self.gone[1 - who]:
                self.flags[who].acquire()
        elif place == 1:
            self._began[who] = self._now()
        self._done[who] += 1

    def leaving(self, who: int, work: Callable[..., None], *arguments: Any) -> None:
        """Do work, and in the end, or when it fails, let the other go on alone."""
        try:
            work(*arguments)
        finally:
            self.gone[who] = True
            self.flags[1 - who].release()

    def _now(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def bare(task: Task, case: Case, loader: DataLoader, turns: Turns, precision: str) -> None:
    """Train as one would without a framework."""
    network = task.network.to(turns.device)
    optimizer = task.optimizer(parameter_groups(network))
    scheduler = task.configure_schedule(optimizer, len(loader))
    network.train()
    for batch in loader:
        turns.step(BARE)
        batch = move_data_to_device(batch, torch.device(turns.device))
        optimizer.zero_grad()
        with torch.autocast(turns.device, torch.bfloat16, enabled=precision == "bf16-mixed"):
            loss = case.loss(network, batch)
        loss.backward()
        if case.clip:
            torch.nn.utils.clip_grad_norm_(network.parameters(), case.clip)
        optimizer.step()
        scheduler.step()
    turns.step(BARE)


def framed(task: Task, case: Case, loader: DataLoader, turns: Turns, precision: str) -> None:
    """Train in Lightning; a step is everything from one batch to the next."""

    class InTurn(DataLoader):
        def __iter__(self) -> Iterator[Any]:
            for batch in super().__iter__():
                turns.step(FRAMED)
                yield batch

    trainer = Trainer(
        accelerator=turns.device, devices=1, max_epochs=1, limit_val_batches=0, gradient_clip_val=case.clip,
        precision=precision, default_root_dir=os.devnull, callbacks=[ExactResume()], **QUIET,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is not validated, and of a loader that cannot resume
        trainer.fit(task, InTurn(loader.dataset, batch_size=loader.batch_size))


def measure(name: str, case: Case, count: int, device: str, precision: str) -> dict[str, Any]:
    """Return medians and quartiles of a case, in milliseconds.

    Args:
        name: of the case.
        case: what is trained.
        count: turns of each side.
        device: ``cpu`` or ``cuda``.
        precision: ``32-true`` or ``bf16-mixed``.
    """
    steps = (count + WARMING) * TURN[device] + 1
    loader = DataLoader(Examples(case, steps * case.batch_size), batch_size=case.batch_size)
    turns, twin, task = Turns(device), case.build(), case.build()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(turns.leaving, BARE, bare, twin, case, loader, turns, precision)
        turns.leaving(FRAMED, framed, task, case, loader, turns, precision)
        other.result()
    pairs = zip(twin.network.cpu().parameters(), task.network.cpu().parameters(), strict=True)
    apart = max((theirs - ours).abs().max().item() for theirs, ours in pairs)
    theirs, ours = ([1e3 * each for each in seconds[WARMING:]] for seconds in turns.seconds)
    extra = [b - a for a, b in zip(theirs, ours, strict=False)]
    lower, middle, upper = quantiles(extra, n=4)
    return {
        "case": name, "device": device, "precision": precision, "turns": len(extra), "bare_ms": median(theirs),
        "task_ms": median(ours), "extra_ms": middle, "extra_quartiles_ms": [lower, upper],
        "share_of_throughput": median(theirs) / (median(theirs) + middle), "largest_difference_of_weights": apart,
    }  # fmt: skip


def table(record: dict[str, Any]) -> str:
    """Return a record in Markdown."""
    lines = [
        "# What a task costs a training step",
        "",
        "A bare PyTorch loop and the task in Lightning train copies of one model on the same batches, in turn, in one",
        "process (`python -m benchmarks.training_overhead`). Medians over turns; the extra time is the median of",
        "paired differences, quartiles in brackets. Wanted: under 3 ms a step on two cores, and at least 0.98 of the",
        "throughput where a step takes 150 ms or more. Weights apart: the largest difference of both in the end.",
        "",
        "malloc keeps what is freed (`benchmarks/memory.py`): in single trials without, either loop had 4,000 to",
        "16,000 page faults a step, by chance of process and thread, and shares of 250 ms steps were 0.93 to 1.",
        "",
        "| case | turns | bare loop, ms | task, ms | extra, ms | share of throughput | weights apart |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in record["results"]:
        lower, upper = row["extra_quartiles_ms"]
        lines.append(
            f"| {row['case']} | {row['turns']} | {row['bare_ms']:.1f} | {row['task_ms']:.1f} | {row['extra_ms']:.2f} "
            f"({lower:.2f} – {upper:.2f}) | {row['share_of_throughput']:.3f} | "
            f"{row['largest_difference_of_weights']:.0e} |"
        )
    about = ", ".join(f"{name} {value}" for name, value in record["surroundings"].items())
    how = f"{record['device']}, {record['precision']}, seed 0, load {record['load at the start']} at the start"
    return "\n".join([*lines, "", f"{how}; {about}.", ""])


def main() -> None:
    """Measure and write, case by case."""
    arguments = parse()
    keep_memory()
    torch.set_num_threads(1)
    cases = {
        name: case for name, case in (GPU if arguments.device == "cuda" else CPU).items() if arguments.only in name
    }
    settings = {"turns": arguments.turns, "steps of a turn": TURN[arguments.device], "seed": 0}
    about = {"device": arguments.device, "precision": arguments.precision, "settings": settings}
    record = {
        **about,
        "load at the start": round(os.getloadavg()[0], 1),
        "surroundings": environment(),
        "results": [],
    }
    for name, case in cases.items():
        record["results"].append(measure(name, case, arguments.turns, arguments.device, arguments.precision))
        write_json(arguments.output / "training_overhead.json", record)
        write_text(arguments.output / "training_overhead.md", table(record))
    print(table(record))


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--device", choices=tuple(TURN), default="cpu")
    parser.add_argument("--precision", choices=("32-true", "bf16-mixed"), default="32-true")
    parser.add_argument("--only", default="", help="the cases whose names hold this")
    return parser.parse_args()


if __name__ == "__main__":
    main()

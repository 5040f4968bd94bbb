"""What an initialization costs beside a bare loop over the layers, and what the difference goes into.

Both draw from torch's generators. Beside that, ``initialize`` keeps what it overwrites in a file until the end,
measures every tensor before and after, and draws beside the model, into which it copies. Times are processor seconds,
of all threads together, and those of the clock; all sides take turns.

python -m benchmarks.init_bare --output benchmarks/results
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import timm
import torch
from torch import nn

from benchmarks.timing import SEED, Times, alternate, measure_parts, seconds
from structured_init import Default, KaimingUniform, initialize
from structured_init.plan import Statistics
from structured_init.threads import one_thread
from structured_init.writer import Writer

NETWORKS = {"ViT-S": "vit_small_patch16_224", "ViT-L": "vit_large_patch16_224"}
WISHED = 1.5


def main() -> None:
    """Measure what was asked for."""
    measure_parts("init_bare", MEASURES, table, parse())


def beside(network: str, threads: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Time the bare loop, the whole call, and what of it is no drawing, in seconds of the processor and the clock."""
    model = timm.create_model(NETWORKS[network])
    torch.set_num_threads(threads)
    try:
        for work in sides(model).values():
            work()  # memory is there
        load = os.getloadavg()[0]
        clock: Times = {name: [] for name in sides(model)}
        timed = {name: partial(both, work, clock[name]) for name, work in sides(model).items()}
        return {"processor": alternate(timed, arguments.repeats), "clock": clock, "load": load}
    finally:
        torch.set_num_threads(1)


def both(work: Callable[[], object], clock: list[float]) -> float:
    """Return the processor's seconds, and note those of the clock."""
    begin = time.perf_counter()
    processor = seconds(work)
    clock.append(time.perf_counter() - begin)
    return processor


def sides(model: nn.Module) -> dict[str, Callable[[], object]]:
    """Return what is timed: the two sides, then pieces of the second, alone or left out of it."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    tensors = [parameter.detach() for layer in layers for parameter in layer.parameters()]
    whole = partial(initialize, model, KaimingUniform(), seed=SEED, progress=False)
    return {
        "bare loop": lambda: [layer.reset_parameters() for layer in layers],
        "initialize": whole,
        "initialize, without the file for undoing": lambda: unkept(whole),
        "statistics, before and after": lambda: measured(2 * tensors),
        "a file as large as that for undoing": lambda: filed(tensors),
        "copying into the model": lambda: copied(tensors),
        "names and report": lambda: initialize(model, Default(), seed=SEED, progress=False),
    }


def unkept(work: Callable[[], object]) -> None:
    """Do something while the writer does not keep what it overwrites."""
    with mock.patch.object(Writer, "_remember"):
        work()


def measured(tensors: list[torch.Tensor]) -> None:
    """Measure tensors on one thread, as an initialization does."""
    with one_thread():
        for tensor in tensors:
            Statistics.of(tensor)


def filed(tensors: list[torch.Tensor]) -> None:
    """Write tensors into a temporary file, one after the other."""
    with tempfile.TemporaryFile() as file:
        for tensor in tensors:
            file.write(tensor.reshape(-1).view(torch.uint8).numpy().data)


def copied(tensors: list[torch.Tensor]) -> None:
    """Copy as many numbers as each tensor has into it, all from one place."""
    source = torch.zeros(max(tensor.numel() for tensor in tensors))
    with one_thread():
        for tensor in tensors:
            tensor.copy_(source[: tensor.numel()].view_as(tensor))


MEASURES = {
    f"{network}, {threads} thread{'s' * (threads > 1)}": partial(beside, network, threads)
    for network in NETWORKS
    for threads in (1, 2)
}


def table(record: dict[str, Any]) -> str:
    """Return a table per network and number of threads."""
    lines = ["# An initialization beside a bare loop over the layers", ""]
    lines += ["    python -m benchmarks.init_bare --output benchmarks/results", ""]
    lines += [
        "`KaimingUniform` beside `layer.reset_parameters()` of every linear layer and convolution: seconds of the",
        "processor, all threads together, and of the clock. The values of `initialize` do not depend on the number of",
        "threads; with several, layers are drawn side by side.",
        "",
        f"At most {WISHED:g} times the bare loop are wished for. What bounds it is the file from which a failure is",
        "undone; the rest are statistics for the report, and values that are drawn beside the model and copied",
        "into it. The file is there because memory may not hold the model twice. It goes through the system's cache,",
        "which takes new pages for every byte of it: where the system has some at hand that costs half a bare loop,",
        "where a virtual machine must ask its host for each, up to four. Writing past the cache would cost the",
        "processor less, and have everybody wait for the disk.",
        "",
        ", ".join(f"{name} {value}" for name, value in record["surroundings"].items()),
    ]
    for name in MEASURES:
        if name in record:
            busy = f"{record[name]['load']:.1f} other processes were running when it began."
            lines += ["", f"## {name}", "", busy, "", *rows(record[name])]
    return "\n".join(lines)


def rows(times: dict[str, Any]) -> list[str]:
    """Return medians, spread and ratios to the bare loop."""
    lines = [
        "| | processor, s: median | least – most | n | times the bare loop | clock, s: median | times the bare loop |",
        "|---" * 7 + "|",
    ]
    processor, clock = times["processor"], times["clock"]
    for name, each in processor.items():
        spread = f"{min(each):.3g} – {max(each):.3g} | {len(each)}"
        lines.append(
            f"| {name} | {median(each):.3g} | {spread} | {ratio(processor, name)} | "
            f"{median(clock[name]):.3g} | {ratio(clock, name)} |"
        )
    return lines


def ratio(times: Times, name: str) -> str:
    """Return how many times as long as the bare loop something takes."""
    return f"{median(times[name]) / median(times['bare loop']):.2f}"


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=tuple(MEASURES), default=list(MEASURES))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()

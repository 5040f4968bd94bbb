"""What a start costs at the sizes of published networks, and on a Llama of 70 billion parameters.

Times are processor seconds of one thread; peaks are the growth of a process' resident memory. Networks of many
equal layers are timed with one and with three of them, and a whole start is counted up from both. Of each Llama one
layer is timed at its real shape; of a start that decomposes matrices per group of heads, one group and the values.
Replicas of smaller width show how times grow, and how far a power law would have missed. Traffic is counted with the
collectives of a simulated process group.

python -m benchmarks.init_scale --output benchmarks/results
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from threadpoolctl import threadpool_limits
from torch import nn
from torch.distributed.fsdp import fully_shard

from benchmarks.collectives import Traffic, sharded_bytes
from benchmarks.init_scale_tables import tables
from benchmarks.init_shapes import (
    NETWORKS,
    PARTS,
    STARTS,
    attention_alone,
    blank,
    group_of_heads,
    llama,
    replica,
)
from benchmarks.init_time import SEED
from benchmarks.memory import hand_back, peak
from benchmarks.timing import seconds
from comparison.run.environment import environment
from structured_init import Initializer, StructuredInitError, initialize
from structured_init.files import write_json, write_text

DEPTHS = (1, 3)
#            width  heads  keys  mlp    layers  vocabulary
LLAMAS = {
    "7B":   (4096,  32,    32,   11008, 32,     32000),
    "70B":  (8192,  64,    8,    28672, 80,     128256),
}  # fmt: skip
CURVES = {  # widths of the replicas
    "kaiming_uniform": (1024, 2048),
    "truncated_normal": (1024, 2048),
    "mlp_mean": (1024, 2048),
    "conditioned": (1024, 2048, 4096),
    "mimetic, float32": (1024, 2048, 4096),
    "mimetic": (1024, 2048, 4096),
    "skipless": (1024, 2048, 3072),
    "delta_orthogonal": (1024, 2048),
}
WHOLE = {"mimetic, float32": 4096}  # the widest replica that is timed whole besides in parts; else 2048
RANKS = (2, 8, 64)


def main() -> None:
    """Measure part by part, writing what is there after each."""
    arguments = parse()
    torch.set_num_threads(1)
    record: dict[str, Any] = {
        "settings": {key: str(value) for key, value in vars(arguments).items() if key != "output"}
    }
    with threadpool_limits(1):
        record["surroundings"] = {**environment(), "seed": SEED}
        for part in arguments.parts:
            record[part] = MEASURES[part](arguments)
            write_json(arguments.output / "init_scale.json", record)
            write_text(arguments.output / "init_scale.md", tables(record) + "\n")
    print(tables(record))


def networks(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Time every network that is small enough at two depths, and weigh what a start of the deeper one holds."""
    found: dict[str, dict[str, Any]] = {}
    for name, network in NETWORKS.items():
        if arguments.only not in name:
            continue
        starts: dict[str, Any] = {}
        for start in network.starts:
            starts[start] = {"held": _forked(held, partial(network.build, DEPTHS[-1]), STARTS[start])}
            for depth in DEPTHS:
                measured = apart(arguments, partial(network.build, depth), STARTS[start])
                starts[start][str(depth)] = {part: measured[part] for part in ("seconds", "peak", "numbers")}
        found[name] = {"layers": network.layers, "starts": starts}
    return found


def llamas(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Time one layer of each Llama at its real shape, whole or in parts, and list what every start sets."""
    found: dict[str, dict[str, Any]] = {}
    for name, (width, heads, keys, mlp, layers, vocab) in LLAMAS.items():
        if width > arguments.max_width:
            continue
        starts: dict[str, Any] = {}
        for start in CURVES:
            if start in PARTS:
                group, values = partial(group_of_heads, width, heads // keys), partial(llama, width, heads, keys, 8)
                starts[start] = {
                    "group": apart(arguments, group, PARTS[start]["group"]),
                    "values": apart(arguments, values, PARTS[start]["values"]),
                }
            else:
                starts[start] = {"layer": apart(arguments, partial(llama, width, heads, keys, mlp), STARTS[start])}
        row = {"sizes": [width, heads, keys, mlp, layers, vocab], "starts": starts}
        found[name] = row
    return found


def curve(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Time replicas of Llama-70B's layer over their width, in parts where a start has parts that grow differently."""
    found: dict[str, dict[str, Any]] = {}
    for start, widths in CURVES.items():
        rows: dict[str, Any] = {}
        for width in (width for width in widths if width <= arguments.max_width):
            row = rows[str(width)] = {}
            if start in PARTS:
                row["group"] = apart(arguments, partial(group_of_heads, width), PARTS[start]["group"])
                row["values"] = apart(arguments, partial(attention_alone, width), PARTS[start]["values"])
            if start not in PARTS or width <= WHOLE.get(start, 2048):
                row["layer"] = apart(arguments, partial(replica, width), STARTS[start])
        found[start] = rows
    return found


def refused(arguments: argparse.Namespace) -> dict[str, str]:
    """Return what the starts say for which a Llama has no place."""
    found = {}
    for start in ("separable", "svd", "mimetic_state_space", "covariance"):
        try:
            initialize(blank(partial(attention_alone, 1024)), STARTS[start], dry_run=True)
        except StructuredInitError as error:
            found[start] = str(error)
    return found


def traffic(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Count the collectives of a sharded replica of width 1024 in a group that is simulated, beside the formula."""
    found: dict[str, dict[str, Any]] = {}
    for start in ("conditioned", "mimetic, float32", "kaiming_uniform"):
        for ranks in RANKS:
            for rank in (0, 1):
                found.setdefault(start, {})[f"rank {rank} of {ranks}"] = _forked(_counted, STARTS[start], rank, ranks)
    return found


def apart(arguments: argparse.Namespace, build: Callable[[], nn.Module], initializer: Initializer) -> dict[str, Any]:
    """Initialize in a process of its own, and return times, peak memory and what was set."""
    result = _forked(timed, build, initializer, arguments.repeats, arguments.budget)
    print(f"{build} {type(initializer).__name__}: {result['seconds']} s", file=sys.stderr, flush=True)
    return result


def timed(build: Callable[[], nn.Module], initializer: Initializer, repeats: int, budget: float) -> dict[str, Any]:
    """Initialize up to ``repeats`` times while they took less than ``budget`` seconds; the peak is the last one's."""
    model, reports, times, grown = blank(build), [], [], []

    def work() -> None:
        reports[:] = [initialize(model, initializer, seed=SEED)]

    while not times or (len(times) < repeats and sum(times) < budget):
        grown.append(peak(lambda: times.append(seconds(work))))
    return {
        "seconds": times,
        "peak": grown[-1],
        "set": {entry.names[0]: list(entry.shape) for entry in reports[0].changed},
        "numbers": sum(parameter.numel() for parameter in model.parameters()),
    }


def held(build: Callable[[], nn.Module], initializer: Initializer) -> int:
    """Return the bytes that are held beyond the model at the peak of a start, without those that malloc keeps."""
    hand_back()
    model = blank(build)
    initialize(model, initializer, seed=SEED)
    return peak(lambda: initialize(model, initializer, seed=SEED))


def _counted(initializer: Initializer, rank: int, ranks: int) -> dict[str, Any]:
    """Initialize one rank's shards; the other ranks are simulated and send nothing of value."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        model = _sharded(ranks)
        with Traffic(rank, ranks) as counted:
            report = initialize(model, initializer, seed=SEED)
    finally:
        dist.destroy_process_group()
    expected = sharded_bytes([entry.shape for entry in report.changed], 2, ranks, rank)
    return {
        "received": counted.received,
        "sent": counted.sent,
        "formula": {"received": expected[0], "sent": expected[1]},
        "calls": counted.calls,
    }


def _sharded(ranks: int) -> nn.Module:
    with torch.device("meta"):
        model = replica(1024)
    mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.02)
    return model


def _forked(function: Callable[..., Any], *args: Any) -> Any:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(function, args)


MEASURES: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "refused": refused,
    "networks": networks,
    "curve": curve,
    "llamas": llamas,
    "traffic": traffic,
}


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=tuple(MEASURES), default=list(MEASURES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--budget", type=float, default=3.0, help="seconds after which nothing is repeated")
    parser.add_argument("--max-width", type=int, default=8192, help="of a Llama")
    parser.add_argument("--only", default="", help="a part of the names of the small networks to time")
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()

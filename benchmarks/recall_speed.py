"""Training steps per second of every network that recall is compared on, beside transformers' own path.

A step is forward, loss of the answer, backward and AdamW, at the sizes of ``configs/experiment/mamba2_copying_short``.
All paths of a network start from the same weights, train on the same batch and take turns in every round, so that what
else the machine does meets them alike.

- ``ours``: the network as ``SequenceRecall`` builds it.
- ``transformers``: the same network with the state-space layers of transformers and its defaults: its loop over tokens
  (Mamba), its chunks of 256 tokens (Mamba-2).
- ``mambapy``: its parallel scan, as transformers calls it, where it is installed. ``chunk 32``: transformers' layers of
  Mamba-2 with chunks of 32, to which ours are set.

GPT-2 and Llama are transformers' own, linear attention is only ours. Before anything is timed, losses and gradients of
all paths are compared.

    python -m benchmarks.recall_speed --output benchmarks/results  # 4 minutes, 5 GB
"""

from __future__ import annotations

import argparse
import copy
import os
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.mamba.modeling_mamba import MambaMixer, is_mambapy_available
from transformers.models.mamba2.configuration_mamba2 import Mamba2Config
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

from benchmarks.memory import keep_memory
from benchmarks.timing import spread
from comparison.run.environment import environment
from lightning_modules.data.recall.recall_set import RecallSet
from lightning_modules.data.recall.tasks import create_task
from lightning_modules.networks.sequence.backbones import create_backbone
from lightning_modules.tasks.language.loss import token_loss
from lightning_modules.tasks.optim import parameter_groups
from structured_init.files import write_json, write_text

LETTERS, BATCH = 10, 64  # of mamba2_copying_short
LENGTHS = (16, 63)  # letters: its longest training example, 34 tokens, and one of 128 tokens
SIZES = {"hidden_size": 64, "num_hidden_layers": 2}
NETWORKS = {
    "mamba": {"state_size": 32},
    "mamba2": {"state_size": 32, "head_dim": 32},
    "hybrid": {"state_size": 32},
    "linear_attention": {},
    "gpt2": {},
    "llama": {},
}
TOLERANCE = 1e-4
TURN = 0.5  # seconds or more

Batch = dict[str, Tensor]


def main() -> None:
    """Check, measure network by network, and write JSON and Markdown."""
    options = parse()
    torch.set_num_threads(options.threads)
    load, rows = os.getloadavg()[0], []
    for letters in LENGTHS:
        batch = draw(letters, options.seed)
        for name in NETWORKS:
            rows.append(measure(name, batch, options.rounds, options.seed))
            print(row(rows[-1]), flush=True)
    settings = {"threads": options.threads, "rounds": options.rounds, "seed": options.seed, "seconds of a turn": TURN}
    versions = environment() | ({"mambapy": version("mambapy")} if is_mambapy_available() else {})
    record = {"settings": settings, "load at the start": round(load, 1), "surroundings": versions, "rows": rows}
    write_json(options.output / "recall_speed.json", record)
    write_text(options.output / "recall_speed.md", text(record))


def draw(letters: int, seed: int) -> Batch:
    """Return a batch of copying."""
    task = create_task("copying", num_letters=LETTERS)
    return RecallSet(task, "train", [(letters, letters)], BATCH, seed).__getitems__(range(BATCH))


def build(name: str, tokens: int, seed: int) -> nn.Module:
    """Return a network as ``SequenceRecall`` has it."""
    torch.manual_seed(seed)
    vocab_size = create_task("copying", num_letters=LETTERS).vocab_size
    return create_backbone(name, vocab_size, tokens, **SIZES, **NETWORKS[name]).train()


def paths(network: nn.Module) -> dict[str, nn.Module]:
    """Return copies of a network by the path that they take; of the same weights."""
    found = {"ours": network}
    mixers = [type(module) for module in network.modules()]
    if any(issubclass(each, Mamba2Mixer) for each in mixers):
        found["transformers"] = host_path(network, chunk_size=Mamba2Config().chunk_size)
        found["chunk 32"] = host_path(network)
    elif any(issubclass(each, MambaMixer) for each in mixers):
        found["transformers"] = host_path(network)
        if is_mambapy_available():
            found["mambapy"] = host_path(network, use_mambapy=True)
    return found


def host_path(network: nn.Module, **settings: Any) -> nn.Module:
    """Return a copy whose state-space layers are transformers' own, with their settings."""
    network = copy.deepcopy(network)
    for module in network.modules():
        for host in (MambaMixer, Mamba2Mixer):
            if isinstance(module, host):
                module.__class__ = host
                vars(module).update(settings)
    return network


def loss(network: nn.Module, batch: Batch) -> Tensor:
    """Return what ``SequenceRecall`` minimizes."""
    return token_loss(network(batch["input_ids"]).logits, batch["targets"]).objective


def difference(networks: dict[str, nn.Module], batch: Batch) -> float | None:
    """Return the largest difference of loss or gradient from ours, by the largest entry; None where ours is alone."""
    results = {}
    for path, network in networks.items():
        value = loss(network, batch)
        results[path] = [value, *torch.autograd.grad(value, list(network.parameters()))]
    ours = results.pop("ours")
    apart = {
        path: max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(theirs, ours, strict=True))
        for path, theirs in results.items()
    }
    for path, worst in apart.items():
        if not worst <= TOLERANCE:
            raise SystemExit(f"'{path}' differs from ours by {worst:.1e}: not the same network")
    return max(apart.values(), default=None)


def training_step(network: nn.Module, batch: Batch) -> Callable[[], None]:
    """Return a function that trains for one step."""
    optimizer = torch.optim.AdamW(parameter_groups(network), lr=1e-3, weight_decay=0.1)

    def step() -> None:
        optimizer.zero_grad()
        loss(network, batch).backward()
        optimizer.step()

    return step


def measure(name: str, batch: Batch, rounds: int, seed: int) -> dict[str, Any]:
    """Return the steps per second of every round, by path."""
    tokens = batch["input_ids"].shape[1]
    networks = paths(build(name, tokens, seed))
    worst = difference(networks, batch)
    speeds: dict[str, list[float]] = {path: [] for path in networks}
    steps = {path: training_step(network, batch) for path, network in networks.items()}
    for _ in range(rounds):
        for path, step in steps.items():
            speeds[path].append(steps_per_second(step))
    parameters = sum(parameter.numel() for parameter in networks["ours"].parameters())
    return {"network": name, "parameters": parameters, "tokens": tokens, "apart": worst, "steps_per_second": speeds}


def steps_per_second(step: Callable[[], None]) -> float:
    """Return the speed of one turn, without its first step, which finds the other path's data in the caches.

    A step that alone takes a turn counts: what it finds there is little beside it.
    """
    begin = time.perf_counter()
    step()
    warm = time.perf_counter()
    if warm - begin >= TURN:
        return 1 / (warm - begin)
    count, now = 0, warm
    while now - warm < TURN:
        step()
        count, now = count + 1, time.perf_counter()
    return count / (now - warm)


def row(cell: dict[str, Any]) -> str:
    """Return one line of the table: medians over rounds, quartiles in brackets."""
    speeds = dict(cell["steps_per_second"])
    ours = speeds.pop("ours")
    columns = [quartiles(ours), quartiles(speeds.get("transformers")), "", "", ""]
    if "transformers" in speeds:
        columns[3] = quartiles(ratios(ours, speeds.pop("transformers")))
        for path, theirs in speeds.items():
            columns[2], columns[4] = f"{path}: {quartiles(theirs)}", quartiles(ratios(ours, theirs))
    apart = "" if cell["apart"] is None else f"{cell['apart']:.0e}"
    return f"| {cell['tokens']} | {cell['network']} | {cell['parameters']:,} | {' | '.join(columns)} | {apart} |"


def ratios(ours: list[float], theirs: list[float]) -> list[float]:
    """Return how many times as fast ours is, round by round."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def quartiles(values: list[float] | None) -> str:
    """Return the median, and the quartiles in brackets; nothing of nothing."""
    if values is None:
        return ""
    middle = median(values)
    return spread(values, sum(middle < bound for bound in (10, 100)))


def text(record: dict[str, Any]) -> str:
    """Return the results in Markdown."""
    settings, around = record["settings"], record["surroundings"]
    about = ", ".join(f"{name} {value}" for name, value in around.items())
    lines = [
        "# Training steps per second of the networks that recall",
        "",
        "    python -m benchmarks.recall_speed --output benchmarks/results",
        "",
        "A step is forward, loss of the answer, backward and AdamW, on a batch of 64 strings to be copied: 34 tokens,",
        "as in `mamba2_copying_short`, and 128. Two layers, 64 wide, state 32, float32. The paths of a network start",
        f"from the same weights and take turns, {settings['rounds']} rounds of {TURN} s, seed {settings['seed']}.",
        "Medians over rounds, quartiles in brackets; a ratio is of the same round. `apart`: the largest difference",
        "from ours of the loss or any gradient before the first step, by the largest entry; more than 1e-4 stops it.",
        "",
        "| tokens | network | parameters | ours, steps/s | transformers, steps/s | set faster, steps/s | "
        "ours / transformers | ours / set faster | apart |",
        "|---" * 9 + "|",
        *map(row, record["rows"]),
        "",
        "- `transformers`: the same network with transformers' own layers and defaults: a loop over tokens in Mamba,",
        "  chunks of 256 tokens in Mamba-2, to which short sequences are filled up.",
        "- `set faster`: the same layers with `use_mambapy`, and with `chunk_size: 32`.",
        "- `hybrid` is a layer of Mamba-2 and one of attention. GPT-2 and Llama are transformers' own, linear",
        "  attention is only ours.",
        "",
        f"{os.cpu_count()} cores, load {record['load at the start']} at the start; {about}.",
        "malloc keeps what is freed ([benchmarks/memory.py](../memory.py)). Not measured on a GPU.",
    ]
    return "\n".join([*lines, ""])


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    keep_memory()
    main()

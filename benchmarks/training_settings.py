"""What compilation, channels_last, bfloat16 and a fused optimizer give a training step, each alone and all together.

    python -m benchmarks.training_settings --output benchmarks/results
    python -m benchmarks.training_settings --device cuda --output runs/settings

All settings train copies of one network on the same batch, a few steps each in turn.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.memory import keep_memory
from benchmarks.timing import spread
from comparison.run.environment import environment
from lightning_modules.networks import create_network
from structured_init.files import write_json, write_text

NETWORKS = {
    "cpu": {"vit_micro_patch4_32": 32, "cct_2_3x2_32": 32, "convmixer_64_4_k5_p2": 32},
    "cuda": {"vit_tiny_patch2_32": 512, "cct_7_3x1_32": 128, "convmixer_256_8_k9_p2": 512},
}
STEPS = {"cpu": 3, "cuda": 20}
#            bf16   channels_last  fused  compile
SETTINGS = {
    "float32":                     (False, False, False, False),
    "bfloat16":                    (True,  False, False, False),
    "channels_last":               (False, True,  False, False),
    "fused AdamW":                 (False, False, True,  False),
    "compile":                     (False, False, False, True),
    "bfloat16, channels_last":     (True,  True,  False, False),
    "bfloat16, fused":             (True,  False, True,  False),
    "bfloat16, fused, compile":    (True,  False, True,  True),
    "all":                         (True,  True,  True,  True),
}  # fmt: skip


def trainer(network: nn.Module, setting: str, batch: int, device: str) -> Callable[[], float]:
    """Return what makes one training step and returns its loss."""
    bf16, channels_last, fused, compiled = SETTINGS[setting]
    layout = torch.channels_last if channels_last else torch.contiguous_format
    network = copy.deepcopy(network).to(device, memory_format=layout)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, fused=fused)
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(batch, 3, 32, 32, generator=generator).to(device, memory_format=layout)
    labels = (torch.arange(batch) % 10).to(device)
    if compiled:
        network.compile()

    def step() -> float:
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            loss = F.cross_entropy(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def measure(name: str, batch: int, device: str, rounds: int, settings: list[str]) -> dict[str, Any]:
    """Time the settings on a network; a setting that cannot run is noted with its reason."""
    torch.manual_seed(0)
    network = create_network(name).train()
    steps, failed, losses = {}, {}, {}
    for setting in settings:
        try:
            step = trainer(network, setting, batch, device)
            torch.manual_seed(0)
            losses[setting] = float(step())
            step()
            steps[setting] = step
        except Exception as error:  # a compiler may lack anything
            failed[setting] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    seconds: dict[str, list[float]] = {setting: [] for setting in steps}
    for _ in range(rounds):
        for setting, step in steps.items():
            seconds[setting].append(_time(step, device))
    return {"network": name, "batch": batch, "seconds": seconds, "first_loss": losses, "failed": failed}


def _time(step: Callable[[], float], device: str) -> float:
    """Return the seconds of a step, after one that brings its data into the caches."""
    step()
    _wait(device)
    begin = time.perf_counter()
    for _ in range(STEPS[device]):
        step()
    _wait(device)
    return (time.perf_counter() - begin) / STEPS[device]


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def table(record: dict[str, Any]) -> str:
    """Return a record in Markdown."""
    lines = [
        "# What settings of a training give",
        "",
        "    python -m benchmarks.training_settings --output benchmarks/results",
        "",
        f"Training steps on one batch on `{record['device']}`, {record['threads']} threads; all take turns,",
        f"{record['rounds']} rounds. How many times as fast as float32: medians over rounds, quartiles in brackets.",
        "",
        "| network | batch | setting | ms a step | times as fast | first loss |",
        "|---|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        reference = row["seconds"]["float32"]
        for setting, values in row["seconds"].items():
            ratio = spread([a / b for a, b in zip(reference, values, strict=True)], 2) if setting != "float32" else ""
            loss = row["first_loss"][setting]
            cells = [row["network"], row["batch"], setting, f"{1e3 * median(values):.1f}", ratio, f"{loss:.3f}"]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
        for setting, reason in row["failed"].items():
            lines.append(f"| {row['network']} | {row['batch']} | {setting} | not run | {reason} |  |")
    lines += ["", ", ".join(f"{name} {value}" for name, value in record["surroundings"].items()) + ", seed 0."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write, network by network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=tuple(NETWORKS), default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    keep_memory()
    torch.set_num_threads(arguments.threads)
    settings = list(dict.fromkeys(["float32", *arguments.settings]))
    about = {"device": arguments.device, "threads": arguments.threads, "rounds": arguments.rounds, "seed": 0}
    record = {**about, "surroundings": environment(), "rows": []}
    for name, batch in NETWORKS[arguments.device].items():
        record["rows"].append(measure(name, batch, arguments.device, arguments.rounds, settings))
        write_json(arguments.output / "training_settings.json", record)
        write_text(arguments.output / "training_settings.md", table(record))
    print(table(record))


if __name__ == "__main__":
    main()

"""What looking at attention costs: one capture, and the steps of a training that is looked at.

python -m benchmarks.capture_speed --output benchmarks/results
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.memory import keep_memory, status
from benchmarks.timing import spread
from callbacks import AttentionMapCallback
from comparison.run.run import environment
from lightning_modules import ImageClassifier
from lightning_modules.networks import create_network
from structured_init.analysis import capture_attention
from structured_init.files import write_json, write_text

STEPS, FIRST = 40, 5  # of a training; the first ones are not counted
TRAINED = "ImageClassifier, ViT 64 wide"
BATCH = 8
SIZES = {"embed_dim": 64, "depth": 2, "num_heads": 2, "patch_size": 8}
QUIET = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False)
MEGABYTE = 2**20


def vit() -> tuple[nn.Module, Tensor]:
    """ViT-Tiny/2, of 256 tokens, and 8 images."""
    return create_network("vit_tiny_patch2_32").eval(), torch.rand(8, 3, 32, 32)


def gpt2() -> tuple[nn.Module, Tensor]:
    """GPT-2 small, on 2 blocks of 512 tokens."""
    return GPT2LMHeadModel(GPT2Config(attn_implementation="sdpa")).eval(), torch.randint(50257, (2, 512))


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "ViT-Tiny/2, 8 images": vit,
    "GPT-2 small, 2 x 512 tokens": gpt2,
}


def one_capture(name: str, rounds: int) -> dict[str, Any]:
    """Time a forward pass and a capture of every layer, in turn; and measure what the capture needs of memory."""
    model, inputs = MODELS[name]()
    with torch.no_grad():
        model(inputs), capture_attention(model, inputs)
        plain, captured = [], []
        for _ in range(rounds):
            plain.append(_seconds(lambda: model(inputs)))
            captured.append(_seconds(lambda: capture_attention(model, inputs)))
    maps = capture_attention(model, inputs)
    size = sum(each.numel() * each.element_size() for each in maps.values())
    return {
        "model": name, "forward_seconds": plain, "capture_seconds": captured, "maps_megabytes": size / MEGABYTE,
        "peak_megabytes": _peak(name, capture=True) - _peak(name, capture=False),
    }  # fmt: skip


def steps_of_training(rounds: int) -> dict[str, Any]:
    """Time the steps of trainings with and without the callback, in turn."""
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(rounds):
        for arm, times in seconds.items():
            with tempfile.TemporaryDirectory() as folder:
                looking = [AttentionMapCallback(figures=False)] if arm == "with" else []
                times.append(median(_steps(looking, folder)))
    return {"case": TRAINED, "step_seconds": seconds}


def _steps(callbacks: list[Callback], folder: str) -> list[float]:
    """Train, and return the seconds of each step."""
    watch = _Watch()
    torch.manual_seed(0)
    images, labels = torch.rand(STEPS * BATCH, 3, 32, 32), torch.arange(STEPS * BATCH) % 10
    loader = DataLoader(TensorDataset(images, labels), batch_size=BATCH)
    trainer = Trainer(
        accelerator="cpu", devices=1, max_epochs=1, limit_val_batches=0, default_root_dir=folder,
        callbacks=[watch, *callbacks], **QUIET,
    )  # fmt: skip
    trainer.fit(ImageClassifier("vit_tiny_patch2_32", SIZES), loader)
    return [after - before for before, after in zip(watch.times[FIRST:], watch.times[FIRST + 1 :], strict=False)]


class _Watch(Callback):
    """Notes when each step begins."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self.times.append(time.perf_counter())


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _peak(name: str, *, capture: bool) -> float:
    """Return the most memory in MiB that a fresh process takes beyond its model, for a forward pass or a capture."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measure_peak, (name, capture))


def _measure_peak(name: str, capture: bool) -> float:
    torch.set_num_threads(1)
    model, inputs = MODELS[name]()
    with torch.no_grad():
        model(inputs[:1])  # the libraries' own buffers
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        before = status("VmRSS")
        kept = capture_attention(model, inputs) if capture else model(inputs)
    peak = status("VmHWM")
    del kept
    return (peak - before) / MEGABYTE


def table(record: dict[str, Any]) -> str:
    """Return a record in Markdown."""
    lines = [
        "# What looking at attention costs",
        "",
        "    python -m benchmarks.capture_speed --output benchmarks/results",
        "",
        "Fused attention stays on; a capture runs one forward pass and computes the maps of every layer beside it.",
        "Medians; ratios are medians over rounds in which both take turns, quartiles in brackets. Memory: how much",
        "more a fresh process takes at most in a capture than in a forward pass.",
        "",
        "| model | forward, ms | capture, ms | capture / forward | maps, MiB | memory beyond a forward pass, MiB |",
        "|---|---|---|---|---|---|",
    ]
    for row in record["captures"]:
        plain, captured = row["forward_seconds"], row["capture_seconds"]
        ratios = [b / a for a, b in zip(plain, captured, strict=True)]
        lines.append(
            f"| {row['model']} | {1e3 * median(plain):.0f} | {1e3 * median(captured):.0f} | {spread(ratios, 2)} | "
            f"{row['maps_megabytes']:.0f} | {row['peak_megabytes']:.0f} |"
        )
    seconds = record["training"]["step_seconds"]
    extra = [1e3 * (b - a) for a, b in zip(seconds["without"], seconds["with"], strict=True)]
    lines += [
        "",
        f"Outside of a capture there is nothing: the callback has no hook around a step. {record['training']['case']}:",
        f"{1e3 * median(seconds['without']):.2f} ms a step without the callback, {spread(extra, 2)} ms more with it,",
        f"over {len(extra)} pairs of trainings of {STEPS} steps.",
        "",
        ", ".join(f"{name} {value}" for name, value in record["surroundings"].items()) + ", seed 0.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    keep_memory()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    record: dict[str, Any] = {
        "settings": {"rounds": arguments.rounds, "seed": 0},
        "surroundings": environment(),
    }
    record["captures"] = list(map(partial(one_capture, rounds=arguments.rounds), MODELS))
    record["training"] = steps_of_training(arguments.rounds)
    write_json(arguments.output / "capture_speed.json", record)
    write_text(arguments.output / "capture_speed.md", table(record))
    print(table(record))


if __name__ == "__main__":
    main()

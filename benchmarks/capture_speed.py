"""What looking at attention costs: one capture, and the steps of a training that is looked at.

python -m benchmarks.capture_speed --output benchmarks/results
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.memory import keep_memory, peak
from benchmarks.timing import SEED, Times, alternate, measure_parts, parser, seconds, spread
from callbacks import AttentionMapCallback
from lightning_modules import ImageClassifier
from lightning_modules.networks import create_network
from structured_init.analysis import capture_attention

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


def one_capture(name: str, arguments: Namespace) -> dict[str, Any]:
    """Time a forward pass and a capture of every layer, in turn; and measure what the capture needs of memory."""
    torch.manual_seed(SEED)
    model, inputs = MODELS[name]()
    with torch.no_grad():
        sides = {"forward": partial(model, inputs), "capture": partial(capture_attention, model, inputs)}
        alternate({side: partial(seconds, work) for side, work in sides.items()}, 1)  # the first calls load libraries
        times = alternate({side: partial(seconds, work) for side, work in sides.items()}, arguments.repeats)
    size = sum(each.nbytes for each in capture_attention(model, inputs).values())
    beyond = _peak(name, capture=True) - _peak(name, capture=False)
    return {**times, "maps_megabytes": size / MEGABYTE, "peak_megabytes": beyond}


def training(arguments: Namespace) -> Times:
    """Time the steps of trainings with and without the callback, in turn."""
    return alternate({"without": _step, "with": lambda: _step(AttentionMapCallback(figures=False))}, arguments.repeats)


def _step(*callbacks: Callback) -> float:
    """Train, and return the seconds of a step, the median."""
    watch = _Watch()
    torch.manual_seed(SEED)
    images, labels = torch.rand(STEPS * BATCH, 3, 32, 32), torch.arange(STEPS * BATCH) % 10
    loader = DataLoader(TensorDataset(images, labels), batch_size=BATCH)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator="cpu", devices=1, max_epochs=1, limit_val_batches=0, default_root_dir=folder,
            callbacks=[watch, *callbacks], **QUIET,
        )  # fmt: skip
        trainer.fit(ImageClassifier("vit_tiny_patch2_32", SIZES), loader)
    return median(after - before for before, after in pairwise(watch.times[FIRST:]))


class _Watch(Callback):
    """Notes when each step begins."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self.times.append(time.perf_counter())


def _peak(name: str, *, capture: bool) -> float:
    """Return the most memory in MiB that a fresh process takes beyond its model, for a forward pass or a capture."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measure_peak, (name, capture))


def _measure_peak(name: str, capture: bool) -> float:
    torch.set_num_threads(1)
    model, inputs = MODELS[name]()
    with torch.no_grad():
        model(inputs[:1])  # the libraries' own buffers
        return peak(lambda: capture_attention(model, inputs) if capture else model(inputs)) / MEGABYTE


def table(record: dict[str, Any]) -> str:
    """Return a record in Markdown."""
    lines = [
        "# What looking at attention costs",
        "",
        "    python -m benchmarks.capture_speed --output benchmarks/results",
        "",
        "A capture runs one forward pass with fused attention off, and takes the maps of every layer.",
        "Medians; ratios are medians over rounds in which both take turns, quartiles in brackets. Captures are",
        "timed in seconds of the processor. Memory: how much more a fresh process takes at most in a capture than in a",
        "forward pass.",
        "",
        "| model | forward, ms | capture, ms | capture / forward | maps, MiB | memory beyond a forward pass, MiB |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in ((name, record[name]) for name in MODELS if name in record):
        plain, captured = row["forward"], row["capture"]
        ratios = [b / a for a, b in zip(plain, captured, strict=True)]
        lines.append(
            f"| {name} | {1e3 * median(plain):.0f} | {1e3 * median(captured):.0f} | {spread(ratios, 2)} | "
            f"{row['maps_megabytes']:.0f} | {row['peak_megabytes']:.0f} |"
        )
    if steps := record.get("training"):
        extra = [1e3 * (b - a) for a, b in zip(steps["without"], steps["with"], strict=True)]
        lines += [
            "",
            f"Outside of a capture there is nothing: the callback has no hook around a step. {TRAINED}:",
            f"{1e3 * median(steps['without']):.2f} ms a step without the callback, {spread(extra, 2)} ms more with it,",
            f"over {len(extra)} pairs of trainings of {STEPS} steps.",
        ]
    surroundings = ", ".join(f"{name} {value}" for name, value in record["surroundings"].items())
    return "\n".join([*lines, "", surroundings])


def main() -> None:
    """Measure and write."""
    keep_memory()
    measures = {name: partial(one_capture, name) for name in MODELS} | {"training": training}
    measure_parts("capture_speed", measures, table, parser(__doc__, measures, repeats=7).parse_args())


if __name__ == "__main__":
    main()

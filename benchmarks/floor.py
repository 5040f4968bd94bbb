"""How far a recipe could be from its floor on a GPU: its floating-point work and its bytes, counted and not timed.

python -m benchmarks.floor --output benchmarks/results
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from comparison.run.environment import environment
from lightning_modules.networks import create_network
from structured_init.files import write_json, write_text

NETWORK, IMAGE = "vit_tiny_patch2_32", 32
BATCH, EPOCHS, IMAGES, MINUTES = 512, 200, 45_000, 10
SMALL = (2, 4)  # batches that are counted; everything is a constant plus a part for each image
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "scaled_dot_product", "linear")


class Device(NamedTuple):
    """The peaks of a device, of its data sheet: dense bfloat16, and its memory."""

    name: str
    flops: float
    bytes: float


DEVICES = (Device("H100 SXM", 989e12, 3.35e12), Device("H200 SXM", 989e12, 4.8e12))


class Traffic(TorchDispatchMode):
    """Counts the bytes that operators read and write.

    Attributes:
        all: of every operator, each on its own, as without fusion.
        products: of matrix products, convolutions and attention alone, as if all else were fused into them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.all = self.products = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(returned.alias_info and not returned.alias_info.is_write for returned in func._schema.returns):
            return result  # a view moves nothing
        size = _bytes((args, kwargs)) + _bytes(result)
        self.all += size
        if any(word in str(func) for word in PRODUCTS):
            self.products += size
        return result


def _bytes(tree: Any) -> int:
    return sum(each.numel() * each.element_size() for each in tree_leaves(tree) if isinstance(each, Tensor))


def step(batch: int) -> dict[str, float]:
    """Count a training step of the recipe on a batch in bfloat16 autocast, AdamW included."""
    torch.manual_seed(0)
    network = create_network(NETWORK)
    optimizer = torch.optim.AdamW(network.parameters(), foreach=False)
    images, labels = torch.rand(batch, 3, IMAGE, IMAGE), torch.arange(batch) % 10
    with FlopCounterMode(display=False) as work, Traffic() as traffic:
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
    return {"flops": float(work.get_total_flops()), "all bytes": traffic.all, "bytes of products": traffic.products}


def extrapolated(counts: Iterable[dict[str, float]], batch: int) -> dict[str, float]:
    """Return what a batch needs, from the counts of the two in ``SMALL``."""
    low, high = counts
    each = {name: (high[name] - low[name]) / (SMALL[1] - SMALL[0]) for name in low}
    return {name: low[name] + each[name] * (batch - SMALL[0]) for name in low}


def measure() -> dict[str, Any]:
    """Count, and divide by what devices can do."""
    counted = extrapolated((step(size) for size in SMALL), BATCH)
    steps = EPOCHS * (IMAGES // BATCH)
    rows = []
    for device in DEVICES:
        seconds = {
            "arithmetic": counted["flops"] / device.flops,
            "memory, products alone": counted["bytes of products"] / device.bytes,
            "memory, nothing fused": counted["all bytes"] / device.bytes,
        }
        rows.append({"device": device.name, "step_ms": {name: 1e3 * each for name, each in seconds.items()}})
    settings = {"network": NETWORK, "batch": BATCH, "epochs": EPOCHS, "images": IMAGES, "counted": SMALL, "seed": 0}
    return {
        "settings": settings,
        "step": counted,
        "steps": steps,
        "rows": rows,
        "surroundings": environment(),
    }


def table(record: dict[str, Any]) -> str:
    """Return a record in Markdown."""
    counted, steps = record["step"], record["steps"]
    lines = [
        "# The floor of ViT-Tiny/2 on CIFAR-10",
        "",
        "    python -m benchmarks.floor --output benchmarks/results",
        "",
        f"`vit_cifar10`: {EPOCHS} epochs of {IMAGES:,} images in batches of {BATCH}, {steps:,} steps, in bfloat16",
        f"autocast. A step has {counted['flops'] / 1e12:.2f} TFLOP (torch's FlopCounterMode). It moves",
        f"{counted['all bytes'] / 1e9:.1f} GB if every operator reads and writes its own operands, and",
        f"{counted['bytes of products'] / 1e9:.1f} GB if only matrix products and attention do, all else fused into",
        "them. Counted on a CPU, extrapolated from two small batches; divided by the data sheets' peaks. Nothing here",
        "is timed.",
        "",
        "| device | bound by | ms a step | minutes for the recipe | share of ten minutes |",
        "|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        for name, value in row["step_ms"].items():
            minutes = value * steps / 6e4
            lines.append(f"| {row['device']} | {name} | {value:.1f} | {minutes:.1f} | {minutes / MINUTES:.0%} |")
    lines += ["", ", ".join(f"{name} {value}" for name, value in record["surroundings"].items()) + ", seed 0."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Count and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    record = measure()
    write_json(arguments.output / "floor.json", record)
    write_text(arguments.output / "floor.md", table(record))
    print(table(record))


if __name__ == "__main__":
    main()

"""How much of an impulse initialization's attention is on its impulse: on positions only, and on real CIFAR-10 images.

For each solver × value–output part × surrounding weights × network: mass on the impulse, and how often it is the
largest entry of its row, in the first, middle and last layer, mean over heads and seeds.

python -m benchmarks.impulse_mass --output runs/impulse_mass
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from comparison.run.environment import environment
from lightning_modules.data.image_data import ImageData
from lightning_modules.networks.vision_transformer import vision_transformer
from structured_init import (
    Compose,
    Default,
    Initializer,
    KaimingUniform,
    Mimetic,
    StructuredInitError,
    attention_sites,
    initialize,
)
from structured_init.analysis import argmax_accuracy, capture_attention, impulse_mass
from structured_init.attention.impulse import AdamSolver, Impulse, SeparableSolver, SparePositions
from structured_init.draws import Draws
from structured_init.files import write_json, write_text
from structured_init.plan import Weights
from structured_init.sites import AttentionSite, position_sites

IMAGE_SIZE, PATCH_SIZE = 32, 2
MEAN, STD = [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]  # of CIFAR-10's training images
#        width layers heads
SIZES = {
    "tiny":  (192, 12, 3),
    "small": (384, 12, 6),
    "base":  (768, 12, 12),
}  # fmt: skip
SURROUNDINGS = {"truncated normal": Default, "PyTorch default": KaimingUniform}
VALUES = {
    "host": list,
    "mimetic": lambda: [Mimetic(query_key=False, positions="keep")],
    "mimetic, weak": lambda: [Mimetic(query_key=False, vo_alpha=0.1, vo_beta=0.1, positions="keep")],
    "mimetic, positions spared": lambda: [Mimetic(query_key=False, positions="keep"), SparePositions()],
}


def solvers(adam_iterations: int) -> dict[str, Impulse]:
    """Return the initializers to compare; adam and svd as published."""
    return {
        "adam": Impulse(solver=AdamSolver(iterations=adam_iterations)),
        "svd": Impulse(solver="svd"),
        "separable κ=∞ gain=1 c=8": Impulse(solver=SeparableSolver(strength=8.0, kappa=None, gain=1.0)),
        "separable κ=∞ gain=1 c=16": Impulse(solver=SeparableSolver(strength=16.0, kappa=None, gain=1.0)),
        "separable κ=2 gain=1 c=8": Impulse(solver=SeparableSolver(strength=8.0, kappa=2.0, gain=1.0)),
        "separable κ=2 gain=1 c=16": Impulse(solver=SeparableSolver(strength=16.0, kappa=2.0, gain=1.0)),
        "separable κ=2 gain=4 c=8": Impulse(solver=SeparableSolver(strength=8.0, kappa=2.0, gain=4.0)),
        "separable (default)": Impulse(solver="separable"),
    }


class Recalled(Initializer):
    """Queries, keys and positions of another model of the same shape: a solution is found once, not in every cell."""

    def __init__(self, solved: nn.Module) -> None:
        self.sites = attention_sites(solved)
        self.position_sites = position_sites(solved)

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        for site, solved in zip(weights.each(attention_sites(weights)), self.sites, strict=True):
            site.query, site.key = solved.query, solved.key
        for site, solved in zip(weights.each(position_sites(weights)), self.position_sites, strict=True):
            site.write(solved.value, "recalled")


def main() -> None:
    """Measure cell by cell, then write the table."""
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    images = real_images(arguments.images)
    rows = []
    for size, (name, initializer), seed in itertools.product(
        arguments.sizes, solvers(arguments.adam_iterations).items(), arguments.seeds
    ):
        if not any(name.startswith(wanted) for wanted in arguments.solvers):
            continue
        for row in cells(size, initializer, seed, images, arguments.values):
            rows.append({"size": size, "solver": name, "seed": seed, **row})
            print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
    write(arguments, rows)


def cells(size: str, initializer: Impulse, seed: int, images: Tensor, parts: list[str]) -> Iterable[dict]:
    """Solve once, and measure in all surroundings and with all value–output parts."""
    solved = network(size, seed)
    initialize(solved, initializer, seed=seed)
    for (around, surround), values in itertools.product(SURROUNDINGS.items(), parts):
        model = network(size, seed)
        try:
            initialize(model, Compose([surround(), Recalled(solved), *VALUES[values]()]), seed=seed)
        except StructuredInitError as error:  # positions that fill the width cannot be spared
            print(f"left out: {error}", flush=True)
            continue
        yield {"surroundings": around, "values": values, **measure(model, initializer, seed, images)}


def measure(model: nn.Module, initializer: Impulse, seed: int, images: Tensor) -> dict[str, list[float]]:
    """Return mass and argmax accuracy in the first, middle and last layer, on positions only and on images."""
    sites = attention_sites(model)
    layers = [0, len(sites) // 2, len(sites) - 1]
    maps = capture_attention(model, images, layers=layers, max_samples=None, max_megabytes=4096)
    result: dict[str, list[float]] = {key: [] for key in ("mass", "argmax", "mass, positions", "argmax, positions")}
    for layer in layers:
        site = sites[layer]
        place = (initializer.head_offsets(site, Draws(seed)), site.grid)
        for kind, seen in (("", maps[site.name]), (", positions", positions_only(model, site))):
            result["mass" + kind].append(round(impulse_mass(seen, *place).mean().item(), 4))
            result["argmax" + kind].append(round(argmax_accuracy(seen, *place).mean().item(), 4))
    return result


def positions_only(model: nn.Module, site: AttentionSite) -> Tensor:
    """Return the maps (1, H, N, N) for tokens that are the layer-normalized positions, without biases."""
    (positions,) = position_sites(model)
    tokens = nn.functional.layer_norm(positions.value, (site.embed_dim,))
    return (site.scale * (tokens @ site.query) @ (tokens @ site.key).mT).softmax(-1)[None]


def network(size: str, seed: int) -> nn.Module:
    """Build a network as timm initializes it, from its own random state."""
    width, depth, heads = SIZES[size]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return vision_transformer(IMAGE_SIZE, PATCH_SIZE, width, depth, heads)


def real_images(count: int) -> Tensor:
    """Return the first validation images of CIFAR-10, normalized."""
    data = ImageData("uoft-cs/cifar10", batch_size=count, mean=MEAN, std=STD, fraction=0.01, val_fraction=0.02, seed=0)
    data.setup("validate")
    return next(iter(data.val_dataloader()))[0]


def write(arguments: argparse.Namespace, rows: list[dict]) -> None:
    """Write the numbers as JSON and the table, means over seeds, as Markdown."""
    settings = {key: value for key, value in vars(arguments).items() if key != "output"}
    record = {"settings": settings, "surroundings": environment(), "rows": rows}
    write_json(arguments.output / "impulse_mass.json", record)
    write_text(arguments.output / "impulse_mass.md", table(rows) + "\n")
    print(table(rows))


def table(rows: list[dict]) -> str:
    """Return one line per cell, its three numbers from the first, middle and last layer."""
    lines = [
        "| network | solver | surroundings | values | mass | argmax | mass, positions only | argmax, positions only |",
        "|---|---|---|---|---|---|---|---|",
    ]
    keys = ("size", "solver", "surroundings", "values")
    for cell in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
        same = [row for row in rows if tuple(row[key] for key in keys) == cell]
        numbers = []
        for kind in ("mass", "argmax", "mass, positions", "argmax, positions"):
            means = torch.tensor([row[kind] for row in same]).mean(dim=0).tolist()
            numbers.append(" / ".join(f"{mean:.2f}" for mean in means))
        lines.append(f"| {' | '.join([*cell, *numbers])} |")
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["tiny", "small", "base"])
    parser.add_argument("--solvers", nargs="+", default=["adam", "svd", "separable"], help="names, or their beginning")
    parser.add_argument("--values", nargs="+", choices=VALUES, default=list(VALUES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--adam-iterations", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Images per second and core of the input pipeline, against timm's transforms on the same images: one core, in turn.

python -m benchmarks.data_speed --output benchmarks/results

Both have the decoded images in memory, and deliver normalized float32 batches. Times are processor seconds, so that
waiting for a core does not count. Then the recipe is loaded by worker processes: what each image costs them, and what
each batch costs the process that trains, which cannot be divided among cores.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from timm.data import create_transform
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import Compose

from benchmarks.timing import alternate, seconds, spread
from comparison.run.environment import environment
from lightning_modules.data.augment import Augmentation
from lightning_modules.data.images import ImageSet
from lightning_modules.data.loader import EpochSampler
from lightning_modules.data.seeded import as_it_is
from structured_init.files import write_json, write_text

POLICY = "rand-m9-mstd0.5-inc1"  # of the published recipe (configs/experiment/vit_cifar10.yaml)
MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
BATCH = 512
PUBLISHED = "flip, RandAugment"
NEEDED = 15_000  # images per second
WORKERS = (1, 2)
RECIPES: dict[str, dict[str, Any]] = {
    "nothing random": {},
    "flip": {"flip": True},
    PUBLISHED: {"flip": True, "rand_augment": POLICY},
    "flip, RandAugment, erasing": {"flip": True, "rand_augment": POLICY, "random_erasing": 0.25},
}


class Pictures(Dataset):
    """Images as timm reads them: one picture each, through a transform."""

    def __init__(self, pixels: NDArray[np.uint8], transform: Callable[[Image.Image], Any]) -> None:
        self.pictures = [Image.fromarray(each) for each in pixels]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(self.pictures[index]), index % 10


def images(count: int, size: int) -> NDArray[np.uint8]:
    """Return smooth coloured images (count, size, size, 3)."""
    coarse = torch.rand(count, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    smooth = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")
    return (255 * smooth).byte().permute(0, 2, 3, 1).contiguous().numpy()


def ours(pixels: NDArray[np.uint8], recipe: dict[str, Any], workers: int = 0) -> DataLoader:
    """Return the batches of :class:`ImageData` for a recipe."""
    augmentation = Augmentation(pixels.shape[1], mean=MEAN, **recipe)
    labels = np.arange(len(pixels)) % 10
    data = ImageSet(pixels, labels, labels, mean=MEAN, std=STD, augmentation=augmentation)
    sampler = EpochSampler(len(data), shuffle=True)
    return DataLoader(
        data,
        batch_size=BATCH,
        sampler=sampler,
        collate_fn=as_it_is,
        num_workers=workers,
        persistent_workers=workers > 0,
    )


def timm(pixels: NDArray[np.uint8], recipe: dict[str, Any], *, crop: bool) -> DataLoader:
    """Return the batches of timm's transforms for a recipe.

    Args:
        pixels: (N, H, W, 3).
        recipe: arguments of :class:`Augmentation`.
        crop: whether timm's random resized crop, which its training transform always has, stays; it keeps all here.
    """
    transform = create_transform(
        pixels.shape[1], is_training=True, scale=(1, 1), ratio=(1, 1), color_jitter=None, mean=MEAN, std=STD,
        hflip=0.5 if recipe.get("flip") else 0.0, auto_augment=recipe.get("rand_augment"),
        re_prob=recipe.get("random_erasing", 0.0), re_mode="pixel",
    )  # fmt: skip
    transform = transform if crop else Compose(transform.transforms[1:])
    return DataLoader(Pictures(pixels, transform), batch_size=BATCH, shuffle=True)


def epoch(loader: DataLoader) -> float:
    """Return the processor seconds of one epoch."""

    def work() -> None:
        for batch in loader:
            assert batch[0].dtype is torch.float32

    return seconds(work)


def measure(recipe: str, pixels: NDArray[np.uint8], rounds: int) -> dict[str, Any]:
    """Time one recipe; return images per second by contestant, and how many times as many ours delivers."""
    arguments = RECIPES[recipe]
    loaders = {
        "ours": ours(pixels, arguments),
        "timm": timm(pixels, arguments, crop=True),
        "timm, without its crop": timm(pixels, arguments, crop=False),
    }
    for loader in loaders.values():
        next(iter(loader))  # the first batch of all loads libraries
    times = alternate({name: partial(epoch, loader) for name, loader in loaders.items()}, rounds)
    rates = {name: [len(pixels) / each for each in values] for name, values in times.items()}
    ratios = {
        name: [mine / other for mine, other in zip(rates["ours"], rates[name], strict=True)] for name in list(rates)[1:]
    }
    return {"recipe": recipe, "images_per_second": rates, "ratios": ratios}


def handed_on(pixels: NDArray[np.uint8], workers: int, epochs: int) -> dict[str, Any]:
    """Return the processor seconds of an epoch of the recipe in this process, and in its workers with their start."""
    loader, before = ours(pixels, RECIPES[PUBLISHED], workers), resource.getrusage(resource.RUSAGE_CHILDREN)
    epoch(loader)  # in which they are started
    here = sum(epoch(loader) for _ in range(epochs)) / epochs
    loader._iterator._shutdown_workers()  # the system counts a child's time when it has ended
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    there = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"workers": workers, "here": here, "there": there / (1 + epochs)}


def table(record: dict[str, Any]) -> str:
    """Return a record in Markdown."""
    settings = record["settings"]
    lines = [
        "# Images per second of the input pipeline",
        "",
        "    python -m benchmarks.data_speed --output benchmarks/results",
        "",
        f"{settings['images']:,} images of {settings['size']} pixels, decoded and in memory, to normalized float32",
        f"batches of {BATCH}, on one core, in processor seconds; all take turns, {settings['rounds']} rounds. Medians;",
        "ratios are medians over rounds, quartiles in brackets. timm's training transform always has a random resized",
        f"crop, which the recipe has not: it is set to keep everything, or taken out. Policy `{POLICY}`.",
        "",
        "| recipe | ours | timm | ours / timm | timm, without its crop | ours / that |",
        "|---|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        rates = {name: f"{median(values):,.0f}" for name, values in row["images_per_second"].items()}
        cells = [rates["ours"]]
        for name, values in row["ratios"].items():
            cells += [rates[name], spread(values, 2)]
        lines.append(f"| {row['recipe']} | " + " | ".join(cells) + " |")
    lines += ["", *_enough(record), "", ", ".join(f"{name} {value}" for name, value in record["surroundings"].items())]
    return "\n".join(lines) + "\n"


def _enough(record: dict[str, Any]) -> list[str]:
    (row,) = [row for row in record["rows"] if row["recipe"] == PUBLISHED]
    alone, count = median(row["images_per_second"]["ours"]), record["settings"]["images"]
    rows = [
        f"| {each['workers']} | {count / each['there']:,.0f} | {1000 * each['here'] / (count / BATCH):.2f}"
        f" | {count / each['here']:,.0f} |"
        for each in record["workers"]
    ]
    slowest = min(count / each["there"] for each in record["workers"])
    return [
        f"200 epochs of 45,000 images in ten minutes are {NEEDED:,} images a second: {NEEDED / alone:.1f} such cores.",
        "",
        f"{PUBLISHED} by worker processes, {record['settings']['rounds']} epochs after the first:",
        "",
        "| workers | a worker, images per second | the process that trains, ms a batch | images per second |",
        "|---|---|---|---|",
        *rows,
        "",
        f"At the lower of these rates {NEEDED:,} images a second take {NEEDED / slowest:.1f} workers. What the process",
        "that trains needs to receive a batch cannot be divided among cores.",
    ]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    pixels = images(arguments.images, arguments.size)
    settings = {"images": arguments.images, "size": arguments.size, "rounds": arguments.rounds, "seed": 0}
    rows = [measure(recipe, pixels, arguments.rounds) for recipe in RECIPES]
    workers = [handed_on(pixels, count, arguments.rounds) for count in WORKERS]
    record = {"settings": settings, "surroundings": environment(), "rows": rows, "workers": workers}
    write_json(arguments.output / "data_speed.json", record)
    write_text(arguments.output / "data_speed.md", table(record))
    print(table(record))


if __name__ == "__main__":
    main()

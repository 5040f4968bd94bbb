"""How far a classically trained network can be deformed without training: its accuracy when its values are remixed.

python -m benchmarks.remix_sweep cct_2_3x2_cifar10_short --checkpoints runs/*/last.ckpt --output runs/remix_sweep
"""

from __future__ import annotations

import argparse
import math
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from comparison.results.paired import t_interval
from comparison.run.environment import environment
from lightning_modules.cli.config_names import read_config, shipped_configs
from lightning_modules.data.image_data import ImageData
from lightning_modules.networks import create_network
from structured_init.files import write_json, write_text
from structured_init.layers import TokenSoftmaxValue

FOLDER = "experiment/"
ALPHAS = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 1.0)


def main() -> None:
    """Measure every checkpoint, then print and write the table."""
    experiments = {name.removeprefix(FOLDER): path for name, path in shipped_configs().items() if FOLDER in name}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=experiments, metavar="experiment", help="a name of configs/experiment")
    parser.add_argument("--checkpoints", nargs="+", type=Path, required=True)
    parser.add_argument(
        "--scales", nargs="+", type=float, default=[1.0, 64.0], help="factors on the softmax over tokens"
    )
    parser.add_argument("--images", type=int, default=2000, help="of the test part")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    experiment = read_config(str(experiments[arguments.experiment]))
    data = ImageData(**experiment["data"]["init_args"])
    images, labels = first_images(data, arguments.images)
    accuracies = {
        f"{scale:g}": [
            sweep(deformable(experiment, data, checkpoint, scale), images, labels)
            for checkpoint in arguments.checkpoints
        ]
        for scale in arguments.scales
    }
    record = {
        "settings": {
            "experiment": arguments.experiment,
            "checkpoints": [str(path) for path in arguments.checkpoints],
            "images": len(images),
            "alphas": ALPHAS,
        },
        "surroundings": environment(),
        "accuracies": accuracies,
    }
    write_json(arguments.output / "remix_sweep.json", record)
    write_text(arguments.output / "remix_sweep.md", table(record) + "\n")
    print(table(record))


def first_images(data: ImageData, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first images of the test part, as the network sees them, and their labels."""
    data.prepare_data()
    data.setup("test")
    batches = data.test_dataloader()
    images, labels = zip(*islice(batches, math.ceil(count / batches.batch_size)), strict=True)
    return torch.cat(images)[:count], torch.cat(labels)[:count]


def deformable(experiment: dict[str, Any], data: ImageData, checkpoint: Path, scale: float) -> nn.Module:
    """Return a trained network whose values can be remixed."""
    model = experiment["model"]["init_args"]
    return create_network(
        model["network"],
        num_classes=data.num_classes,
        image_size=data.image_size,
        in_channels=data.in_channels,
        weights=str(checkpoint),
        token_softmax={"mode": "remix", "alpha": 0.0, "scale": scale},
        **model.get("network_args", {}),
    ).eval()


@torch.no_grad()
def sweep(network: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> list[float]:
    """Return the share of images that are classified as they should, at each α."""
    found = []
    for alpha in ALPHAS:
        for module in network.modules():
            if isinstance(module, TokenSoftmaxValue):
                module.set_alpha(alpha)
        right = [
            (network(some).argmax(-1) == of).sum()
            for some, of in zip(images.split(500), labels.split(500), strict=True)
        ]
        found.append(float(sum(right)) / len(images))
    return found


def table(record: dict[str, Any]) -> str:
    """Return the results in Markdown."""
    settings = record["settings"]
    lines = ["| α | " + " | ".join(f"scale {scale}" for scale in record["accuracies"]) + " |"]
    lines.append("|---" * (len(record["accuracies"]) + 1) + "|")
    for place, alpha in enumerate(settings["alphas"]):
        cells = [str(t_interval([100 * of[place] for of in runs])) for runs in record["accuracies"].values()]
        lines.append(f"| {alpha:g} | " + " | ".join(cells) + " |")
    count = len(next(iter(record["accuracies"].values())))
    about = ", ".join(f"{name} {value}" for name, value in record["surroundings"].items())
    lines += [
        "",
        f"Percent of {settings['images']} test images, mean ± half of the 95 % t interval over {count} networks.",
    ]
    return "\n".join([*lines, "", about + "."])


if __name__ == "__main__":
    main()

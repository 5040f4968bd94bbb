"""Where does structure pay, and where does it stop? Initializations by number of images and of steps.

    python -m benchmarks.few_images --data cifar10 --output runs/few_images
    python -m benchmarks.few_images --draw

The rule is "Where structure pays" of ``docs/contributing/baselines_rules.md``. Runs that are complete are kept, so the
same command continues. On a GPU the network is ViT-Tiny/4. Results are added to ``benchmarks/results/few_images.csv``.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import torch

from benchmarks.published import plan, train
from comparison.plan.learning_rates import choose
from comparison.runs.folder import Run

RATES = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
FIRST = {160: (0.01, 0.03, 0.1), 640: (0.003, 0.01, 0.03), 2560: (0.001, 0.003, 0.01)}  # steps → rates to begin with
IMAGES = (500, 2_000, 8_000)
DATA = {"cifar10": (50_000, 8, []), "fashion_mnist": (60_000, 7, ["-c", "data/fashion_mnist"])}  # images, patch, words
ARMS = ("default", "sincos", "codes", "mimetic", "mimetic_scrambled")
SWEEP, TEST = "100", "20-24"  # seeds
WARMUP, BATCH = 40, 50  # steps, images
RESULTS = Path("benchmarks/results/few_images.csv")


def words(data: str, images: int, steps: int, seeds: str, rates: set[float], device: torch.device) -> list[str]:
    """Return what ``compare`` would be given for a cell of the map."""
    known, patch, configuration = DATA[data]
    small = f"{{patch_size: {patch}, embed_dim: 64, depth: 4, num_heads: 4}}"
    network = ["--model.init_args.network", "vit_tiny_patch4_32", "-c", "trainer/gpu"]
    return [
        *("-c", "vit_cifar10_short", "-c", "optim/muon", *configuration),
        *("--model.init_args.optimizer.class_path", "benchmarks.float32_muon.Muon"),
        *(network if device.type == "cuda" else ["--model.init_args.network_args", small]),
        *("--inits", ",".join(ARMS), "--seeds", seeds, "--learning-rates", ",".join(map(str, sorted(rates)))),
        *("--data.init_args.fraction", repr(images / known), "--data.init_args.val_fraction", repr(1_000 / known)),
        *("--data.init_args.batch_size", str(BATCH), "--model.init_args.warmup_epochs", str(WARMUP * BATCH / images)),
        *("--trainer.max_epochs", "-1", "--trainer.max_steps", str(steps)),
        *("--trainer.check_val_every_n_epoch", "null", "--trainer.val_check_interval", "160"),
    ]


def beyond(best: dict[str, float], tried: set[tuple[str, float]]) -> Iterator[tuple[str, float]]:
    """Yield arms whose best rate is an end of what was tried, with the next rate there."""
    for arm, rate in best.items():
        place = RATES.index(rate)
        for following in RATES[max(place - 1, 0) : place + 2]:
            if (arm, following) not in tried:
                yield arm, following


def sweep(data: str, steps: int, folder: Path, device: torch.device) -> dict[str, float]:
    """Return the rate of each arm with the best final validation accuracy, mean over the numbers of images."""
    tried: set[tuple[str, float]] = set()
    wanted = {(arm, rate) for arm in ARMS for rate in FIRST[steps]}
    while wanted:
        tried |= wanted
        tables = []
        for images in IMAGES:
            comparison = plan(
                words(data, images, steps, SWEEP, {*RATES}, device), folder / f"{data}_{images}_{steps}_rates"
            )
            comparison.write()
            runs = [run for run in comparison.runs() if (run.arm, run.learning_rate) in tried]
            train(runs, math.inf, len(ARMS), device)
            ((_, arms),) = choose(comparison, runs).items()
            tables.append(pd.DataFrame({arm: each["validation"] for arm, each in arms.items()}).map(only, "ignore"))
        means = sum(tables) / len(tables)  # rates × arms
        print(means.to_string(float_format="{:.3f}".format), flush=True)
        best = {arm: float(rate) for arm, rate in means.idxmax().items()}
        wanted = {*beyond(best, tried)}
    return best


def only(values: list[float]) -> float:
    """Return the value of the one seed of a sweep."""
    (value,) = values
    return value


def row(run: Run, **cell: str | int) -> dict[str, str | int | float | None]:
    """Return a line of the results."""
    result = run.latest().result
    values = {name: result["metrics"][name] for name in ("val/accuracy", "test/accuracy")}
    return {**cell, "arm": run.arm, "seed": run.seed, "lr": run.learning_rate, **values, "seconds": result["seconds"]}


def measure(data: str, folder: Path, device: torch.device) -> Iterator[list[dict[str, str | int | float | None]]]:
    """Yield the results of a cell, cell by cell, from the shortest training on."""
    for steps in FIRST:
        best = sweep(data, steps, folder, device)
        print(f"{data}, {steps} steps: {best}", flush=True)
        for images in IMAGES:
            given = words(data, images, steps, TEST, {*best.values()}, device)
            comparison = plan(given, folder / f"{data}_{images}_{steps}")
            comparison.write()
            runs = [run for run in comparison.runs() if run.learning_rate == best[run.arm]]
            train(runs, math.inf, len(ARMS), device)
            yield [row(run, data=data, images=images, steps=steps) for run in runs]


def main() -> None:
    """Train what is missing and add it to the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=DATA, default=[*DATA])
    parser.add_argument("--output", type=Path, default=Path("runs/few_images"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for data in arguments.data:
        for rows in measure(data, arguments.output, device):
            known = pd.read_csv(arguments.results) if arguments.results.is_file() else pd.DataFrame()
            both = pd.concat([known, pd.DataFrame(rows)]).drop_duplicates(["data", "images", "steps", "arm", "seed"])
            both.to_csv(arguments.results, index=False, float_format="%.6g")


if __name__ == "__main__":
    main()

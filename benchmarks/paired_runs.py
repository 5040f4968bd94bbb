"""Paired runs: every start with every seed, everything else equal, each run resumable and never repeated."""

from __future__ import annotations

import csv
import json
import platform
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

from lightning_modules.cli import main
from structured_init.errors import StructuredInitError
from structured_init.files import replacing

LIBRARIES = ("torch", "torchvision", "lightning", "timm", "transformers", "datasets")


@dataclass(frozen=True)
class Run:
    """One training run.

    Attributes:
        start: name or path of the ``init`` configuration.
        seed: of the run; the same seed gives the same data order, augmentation and dropout under every start.
        folder: where its metrics, report, maps and checkpoints go.
    """

    start: str
    seed: int
    folder: Path

    @property
    def result(self) -> Path:
        """The file that exists once the run is complete."""
        return self.folder / "result.json"

    @property
    def checkpoint(self) -> Path:
        """The checkpoint from which a killed run goes on."""
        return self.folder / "checkpoints" / "last.ckpt"


def paired_runs(output: Path, starts: Sequence[str], seeds: Sequence[int]) -> list[Run]:
    """List the runs seed by seed, so that an unfinished comparison is paired as far as it got."""
    return [Run(start, seed, output / Path(start).stem / f"seed_{seed}") for seed in seeds for start in starts]


def train(run: Run, experiment: str, extra: Sequence[str]) -> None:
    """Train and test one run, or do nothing when it is complete; a killed one goes on from its last checkpoint.

    Raises:
        StructuredInitError: the folder holds a run of another start or experiment, other arguments or other threads.
    """
    threads = torch.get_num_threads()
    _claim(run, {"start": run.start, "experiment": experiment, "arguments": list(extra), "threads": threads})
    if run.result.exists():
        return
    begin = time.perf_counter()
    resume = ["--ckpt_path", str(run.checkpoint)] if run.checkpoint.exists() else []
    logger = "--trainer.logger.init_args"
    cli = main(
        [
            *("fit", "-c", experiment, "-c", _config(run.start), "--seed_everything", str(run.seed)),
            *("--trainer.logger", "CSVLogger", f"{logger}.save_dir", str(run.folder.parent)),
            *(f"{logger}.name", "", f"{logger}.version", run.folder.name, *resume, *extra),
        ]
    )
    metrics = cli.trainer.test(cli.model, datamodule=cli.datamodule, verbose=False)[0]
    with replacing(run.result) as temporary:
        result = {"accuracy": 100 * metrics["test/accuracy"], "seconds": time.perf_counter() - begin}
        temporary.write_text(json.dumps({"start": run.start, "seed": run.seed, **result}, indent=1))


def _claim(run: Run, settings: dict[str, object]) -> None:
    """Note what a run was started with, so that its folder never answers for other settings."""
    file = run.folder.with_name(f"{run.folder.name}.settings.json")  # beside it: a logger wants its folder empty
    if file.exists() and (before := json.loads(file.read_text())) != settings:
        name = next(key for key in settings if before.get(key) != settings[key])
        raise StructuredInitError(
            f"'{run.folder}' holds a run with {name} {before.get(name)}, not {settings[name]}: choose another --output"
        )
    with replacing(file) as temporary:
        temporary.write_text(json.dumps(settings, indent=1))


def _config(start: str) -> str:
    """Return a user's own file as it is, and the name of a shipped start with its folder."""
    return start if Path(start).is_file() else f"init/{start}"


def finished(runs: Sequence[Run]) -> Iterator[dict[str, float]]:
    """Read the results of the complete runs."""
    for run in runs:
        if run.result.exists():
            yield json.loads(run.result.read_text())


def final_accuracy(runs: Sequence[Run]) -> dict[str, dict[int, float]]:
    """Return final test accuracy in percent by start and seed."""
    accuracy: dict[str, dict[int, float]] = {}
    for result in finished(runs):
        accuracy.setdefault(result["start"], {})[result["seed"]] = result["accuracy"]
    return accuracy


def learning_curve(run: Run, column: str = "val/accuracy") -> tuple[list[int], list[float]]:
    """Return epochs and values of one logged column, the epoch in which it was logged last winning."""
    values: dict[int, float] = defaultdict(float)
    with (run.folder / "metrics.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row.get(column):
                values[int(row["epoch"])] = float(row[column])
    return list(values), list(values.values())


def surroundings() -> dict[str, str | int]:
    """Return what a number depends on: hardware, threads and versions."""
    return {
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
    }


def _processor() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())

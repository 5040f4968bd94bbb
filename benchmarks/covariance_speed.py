"""How long FilterCovariance takes on ConvMixer-1536/20, beside one multivariate-normal call per layer in numpy.

Times are processor seconds of one thread. The contestants take turns, and a ratio is one of medians. numpy's side finds
no layers, checks nothing, can undo nothing and reports nothing: it is a loop over the blocks of this one model.

python -m benchmarks.covariance_speed --output benchmarks/results
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import timm
import torch
from threadpoolctl import threadpool_limits
from torch import nn

from benchmarks.init_time import SEED
from benchmarks.timing import Stopwatch, Times, alternate, seconds
from comparison.run.environment import environment
from structured_init import FilterCovariance, depthwise_conv_sites, initialize
from structured_init.conv.covariance import closed_form, initializer, project, sigma_at
from structured_init.files import write_json, write_text

MODEL = "convmixer_1536_20"
SCHEDULE = {"sigma0": 0.16, "v": 0.32, "a": 2.88}
STEPS = {"covariance": "closed_form", "projection": "symmetric_root", "sampling": "sample_filters"}
NUMPY = "numpy, method='{}'"


def main() -> None:
    """Measure, and write numbers and tables."""
    arguments = parse()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        record = {
            "settings": {"model": arguments.model, "repeats": arguments.repeats, **SCHEDULE},
            "surroundings": environment(),
            **measure(timm.create_model(arguments.model), arguments.repeats),
        }
    write_json(arguments.output / "covariance_speed.json", record)
    write_text(arguments.output / "covariance_speed.md", table(record) + "\n")
    print(table(record))


def measure(model: nn.Module, repeats: int) -> dict[str, Any]:
    """Let the contestants take turns, take one of them apart, and compare what they draw."""
    contestants: dict[str, Callable[[], float]] = {
        NUMPY.format(method): lambda method=method: seconds(lambda: numpy_start(model, method))
        for method in ("svd", "eigh")
    }
    contestants |= {
        f"FilterCovariance, psd='{psd}'": lambda psd=psd: seconds(lambda: ours(model, psd))
        for psd in ("clip", "absolute")
    }
    alternate(contestants, 1)  # the first calls of all load libraries
    times = alternate(contestants, repeats)
    shares = [taken_apart(model) for _ in range(repeats)]
    return {"times": times, "shares": shares, "distances": distances(model)}


def numpy_start(model: nn.Module, method: str) -> None:
    """Start every depthwise convolution by one vectorized call; ``svd`` and ``eigh`` both draw from |Σ|."""
    generator, last = np.random.default_rng(SEED), len(model.blocks) - 1
    for layer, block in enumerate(model.blocks):
        weight = block[0].fn[0].weight
        covariance = closed_form(tuple(weight.shape[2:]), sigma_at(layer / last, **SCHEDULE)).numpy()
        filters = generator.multivariate_normal(
            np.zeros(len(covariance)), covariance, size=len(weight), check_valid="ignore", method=method
        )
        with torch.no_grad():
            weight.copy_(torch.from_numpy(filters).view_as(weight))


def ours(model: nn.Module, psd: str) -> None:
    """Start the model as a user does."""
    initialize(model, FilterCovariance(**SCHEDULE, psd=psd), seed=SEED)


def taken_apart(model: nn.Module) -> dict[str, float]:
    """Return the seconds of a whole start and of its steps, the sum over layers."""
    published = {name: getattr(initializer, name) for name in STEPS.values()}
    watches = {step: Stopwatch(published[name]) for step, name in STEPS.items()}
    try:
        for step, name in STEPS.items():
            setattr(initializer, name, KeywordStopwatch(watches[step]))
        whole = seconds(lambda: ours(model, "clip"))
    finally:
        for name, function in published.items():
            setattr(initializer, name, function)
    return {"whole": whole, **{step: watch.seconds for step, watch in watches.items()}}


class KeywordStopwatch:
    """A stopwatch around a function that takes keywords too."""

    def __init__(self, watch: Stopwatch) -> None:
        self.watch = watch
        self.function = watch.function

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        self.watch.function = lambda: self.function(*args, **keywords)
        return self.watch()


def distances(model: nn.Module) -> dict[str, float]:
    """Return how far the last layer's filters are from the law asked for, ‖sample covariance − law‖ / ‖law‖."""
    site = depthwise_conv_sites(model)[-1]
    covariance = closed_form(site.kernel_size, sigma_at(1.0, **SCHEDULE))
    found = {}
    starts = {
        NUMPY.format("svd"): ("absolute", lambda: numpy_start(model, "svd")),
        NUMPY.format("eigh"): ("absolute", lambda: numpy_start(model, "eigh")),
        "FilterCovariance, psd='absolute'": ("absolute", lambda: ours(model, "absolute")),
        "FilterCovariance, psd='clip'": ("clip", lambda: ours(model, "clip")),
    }
    for name, (psd, start) in starts.items():
        start()
        filters, law = site.filters.double().flatten(1), project(covariance, psd)
        found[name] = ((filters.mT @ filters / len(filters) - law).norm() / law.norm()).item()
    return found


def table(record: dict[str, Any]) -> str:
    """Return the tables of a record."""
    settings, times = record["settings"], record["times"]
    lines = [
        ", ".join(f"{name} {value}" for name, value in record["surroundings"].items()),
        "",
        f"## {settings['model']}: every depthwise filter from the closed form, the whole call",
        "",
        *rows(times),
        "",
        "numpy's side makes the covariance by the same function, draws in float64 and copies into the weights; both of",
        "its methods draw from |Σ|. `FilterCovariance` finds the layers, projects, draws in float32, keeps what it",
        "overwrites until all is written, and measures what it writes before and after for the report.",
        "",
        "## What the time of psd='clip' goes into",
        "",
        "| | seconds, median | share of the whole |",
        "|---|---|---|",
        *shares(record["shares"]),
        "",
        "## Distance of the last layer's sample covariance from the law",
        "",
        "| | relative, Frobenius |",
        "|---|---|",
        *(f"| {name} | {value:.3f} |" for name, value in record["distances"].items()),
    ]
    return "\n".join(lines)


def rows(times: Times) -> list[str]:
    """Return median, spread and the ratio to numpy's default, the larger the faster."""
    result = ["| | seconds, median | least – most | n | numpy's default takes |", "|---|---|---|---|---|"]
    default = median(times[NUMPY.format("svd")])
    for name, each in times.items():
        ratio = f"{default / median(each):.2f}×"
        result.append(f"| {name} | {median(each):.4f} | {min(each):.4f} – {max(each):.4f} | {len(each)} | {ratio} |")
    return result


def shares(runs: list[dict[str, float]]) -> list[str]:
    """Return each step's median seconds, and the median of its share run by run."""
    rest = [{**run, "sites, overlay, journal, report": 2 * run["whole"] - sum(run.values())} for run in runs]
    return [
        f"| {step} | {median(run[step] for run in rest):.4f} | {median(run[step] / run['whole'] for run in rest):.0%} |"
        for step in rest[0]
    ]


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--model", default=MODEL, help="a ConvMixer of timm")
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()

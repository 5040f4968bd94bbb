"""Accuracy of several starts on small data: paired runs, one table, resumable.

python -m benchmarks.accuracy vit_cifar10_short --seeds 0 1 2 --output runs/cifar10_short
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from benchmarks.paired_runs import final_accuracy, finished, paired_runs, surroundings, train
from structured_init.analysis.paired import paired_table
from structured_init.errors import StructuredInitError
from structured_init.files import replacing


def main() -> None:
    """Run what is missing, then print and write the table."""
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    runs = paired_runs(arguments.output, arguments.starts, arguments.seeds)
    for number, run in enumerate(runs, 1):
        print(f"[{number}/{len(runs)}] {run.start}, seed {run.seed}", flush=True)
        train(run, arguments.experiment, ["--trainer.enable_progress_bar", "false", *arguments.extra])
        print(table(arguments, runs), flush=True)
    results = list(finished(runs))
    with replacing(arguments.output / "results.json") as temporary:
        record = {"experiment": arguments.experiment, "runs": results, "surroundings": surroundings()}
        temporary.write_text(json.dumps(record, indent=1) + "\n")
    with replacing(arguments.output / "table.md") as temporary:
        temporary.write_text(table(arguments, runs) + "\n")
    print(f"\nwrote {arguments.output / 'table.md'} and {arguments.output / 'results.json'}")


def table(arguments: argparse.Namespace, runs: list) -> str:
    """Return the table of what is finished."""
    return paired_table(final_accuracy(runs), arguments.baseline, arguments.control)


def parse() -> argparse.Namespace:
    """Read the command line; what it does not know is passed to every run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment")
    parser.add_argument("--starts", nargs="+", default=["default", "kaiming_uniform", "sincos", "mimetic"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--baseline", default="default")
    parser.add_argument("--control", default="sincos", help="a second reference: the same positions")
    parser.add_argument("--threads", type=int, default=1, help="part of a run's identity")
    parser.add_argument("--output", type=Path, required=True)
    arguments, arguments.extra = parser.parse_known_args()
    return arguments


if __name__ == "__main__":
    try:
        main()
    except StructuredInitError as error:
        raise SystemExit(f"accuracy: {error}") from None

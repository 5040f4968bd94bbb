"""Certified and attacked accuracy of three kinds of convolution: paired runs, one table, resumable.

python -m benchmarks.certified kw_large_cifar10_short --output runs/certified
python -m benchmarks.certified kw_large_cifar10_short --output runs/certified_resnet9 --model.network resnet9
python -m benchmarks.certified kw_large_cifar10 --output runs/certified_full     # full width, 200 epochs: a GPU

What is trained is ``structured-init compare`` with the convolution as its grid; this prints the table of its results.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pandas as pd

from comparison.command import compare
from comparison.results.paired import paired_difference, t_interval
from comparison.results.records import load_results
from comparison.results.tables import difference_text
from structured_init.errors import StructuredInitError
from structured_init.files import write_text

CONVOLUTION = "model.init_args.network_args.conv"
BOUNDS = ("test/lipschitz_lower", "test/lipschitz_upper")


def main() -> None:
    """Run what is missing, then print and write the table."""
    arguments = parse()
    command = ["-c", arguments.experiment, "--inits", "default", "--no-open", "--seeds", arguments.seeds]
    grid = ["--grid", f"{CONVOLUTION}={arguments.arms}", "--threads", str(arguments.threads)]
    compare([*command, *grid, "--output", str(arguments.output), *arguments.extra])
    text = table(load_results(arguments.output), arguments.baseline)
    write_text(arguments.output / "certified.md", text + "\n")
    print(f"\n{text}\n\nwrote {arguments.output / 'certified.md'}")


def table(results: pd.DataFrame, baseline: str) -> str:
    """Return means with t intervals per convolution, and the differences to one of them within each seed.

    Args:
        results: of :func:`load_results`, with the convolution as a key of the grid.
        baseline: the convolution that differences refer to.

    Raises:
        StructuredInitError: the baseline is none of the arms.
    """
    by_arm = {str(arm): rows.set_index("seed") for arm, rows in results.groupby(CONVOLUTION, sort=False)}
    if baseline not in by_arm:
        raise StructuredInitError(f"no run has the convolution '{baseline}': there are {', '.join(by_arm)}")
    metrics = [name for name in results.columns if name == "test/accuracy" or _level(name) is not None]
    metrics.sort(key=lambda name: (name != "test/accuracy", "pgd" in name, _level(name) or 0))
    lines = [
        "| test | " + " | ".join(f"{arm} ({len(rows)} seeds)" for arm, rows in by_arm.items()) + " |",
        "|---" * (len(by_arm) + 1) + "|",
    ]
    for metric in metrics:
        values = {arm: (100 * rows[metric]).dropna().to_dict() for arm, rows in by_arm.items()}
        cells = [_cell(values[arm], None if arm == baseline else values[baseline]) for arm in by_arm]
        lines.append(f"| {_words(metric)} % | " + " | ".join(cells) + " |")
    for metric in (name for name in BOUNDS if name in results.columns):
        cells = [f"{rows[metric].min():.3g} – {rows[metric].max():.3g}" for rows in by_arm.values()]
        lines.append(f"| {_words(metric)} | " + " | ".join(cells) + " |")
    cells = [f"{rows['seconds'].mean():.0f}" for rows in by_arm.values()]
    note = f"Mean ± half of the 95 % t interval over seeds; in brackets the paired difference to {baseline}."
    return "\n".join([*lines, "| seconds a run | " + " | ".join(cells) + " |", "", note])


def _cell(values: dict[int, float], reference: dict[int, float] | None) -> str:
    mean = str(t_interval(list(values.values())))
    return mean if reference is None else f"{mean} ({difference_text(paired_difference(values, reference))})"


def _level(metric: str) -> float | None:
    """Return the radius in a metric's name, in 1/255."""
    found = re.fullmatch(r"test/(?:certified|pgd)_accuracy_(\d+(?:_\d+)?)", metric)
    return float(found[1].replace("_", ".")) if found else None


def _words(metric: str) -> str:
    level = _level(metric)
    if level is None:
        return {"test/accuracy": "clean", BOUNDS[0]: "Lipschitz, found", BOUNDS[1]: "Lipschitz, bound"}[metric]
    return f"{'certified' if 'certified' in metric else 'PGD'} {level:g}/255"


def parse() -> argparse.Namespace:
    """Read the command line; what it does not know is passed to every run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment")
    parser.add_argument("--arms", default="cayley,orthogonium,plain", help="values of network_args.conv")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--baseline", default="plain")
    parser.add_argument("--threads", type=int, default=1, help="part of a run's identity")
    parser.add_argument("--output", type=Path, required=True)
    arguments, arguments.extra = parser.parse_known_args()
    return arguments


if __name__ == "__main__":
    try:
        main()
    except StructuredInitError as error:
        raise SystemExit(f"certified: {error}") from None

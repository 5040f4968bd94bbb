"""Starts of depthwise filters, trained and frozen, at several kernel sizes: paired runs, one table, resumable.

python -m benchmarks.conv_starts convmixer_cifar10_short --learned CHECKPOINT --output runs/conv
python -m benchmarks.conv_starts convmixer_cifar10 --learned CHECKPOINT --output runs/full --trainer.accelerator gpu

What is trained is ``structured-init compare`` with the kernel size as its grid; this prints the tables of its results.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from comparison.command import compare
from comparison.results.paired import paired_difference, paired_values, t_interval
from comparison.results.records import load_results
from comparison.results.tables import difference_text
from structured_init.errors import StructuredInitError
from structured_init.files import write_text

KERNEL = "model.init_args.network_args.kernel_size"
STARTS = ("default", "covariance", "covariance_trace", "filters_impulse", "filters_box")
FROZEN = "_frozen"
METRIC = "test/accuracy"

Values = dict[tuple[str, int], dict[int, float]]  # (arm, kernel size) → seed → accuracy in percent


def main() -> None:
    """Run what is missing, then print and write the tables."""
    arguments = parse()
    arms = [name + suffix for suffix in ("", FROZEN) for name in STARTS]
    if arguments.learned:
        arms += [
            f"learned=covariance_learned{{covariances={arguments.learned}}}",
            f"learned{FROZEN}=covariance_learned{{covariances={arguments.learned},frozen=true}}",
        ]
    command = ["-c", arguments.experiment, "--inits", ",".join(arms), "--no-open", "--seeds", arguments.seeds]
    grid = ["--grid", f"{KERNEL}={arguments.kernels}", "--threads", str(arguments.threads)]
    compare([*command, *grid, "--output", str(arguments.output), *arguments.extra])
    text = tables(load_results(arguments.output))
    write_text(arguments.output / "conv_starts.md", text + "\n")
    print(f"\n{text}\n\nwrote {arguments.output / 'conv_starts.md'}")


def tables(results: pd.DataFrame) -> str:
    """Return accuracies and differences to the default start, and what freezing costs, at every kernel size.

    Args:
        results: of :func:`load_results`, with the kernel size as a key of the grid.

    Raises:
        StructuredInitError: there is no run of the default start.
    """
    values = by_arm(results)
    kernels = sorted({kernel for _, kernel in values}, reverse=True)
    arms = list(dict.fromkeys(arm for arm, _ in values))
    if "default" not in arms:
        raise StructuredInitError(f"no run has the default start: there are {', '.join(arms)}")
    return "\n".join([*_accuracies(values, arms, kernels), "", *_gaps(values, arms, kernels), "", NOTE])


NOTE = (
    "Points of test accuracy; mean ± half of the 95 % t interval over seeds, differences within a seed. A gap is "
    "frozen − trained of the same start; its growth is the gap at the larger kernel minus the gap at the smaller."
)


def by_arm(results: pd.DataFrame) -> Values:
    """Return the accuracy of every seed, in percent, by arm and kernel size."""
    groups = results.groupby(["arm", KERNEL], sort=False)
    return {
        (str(arm), int(kernel)): (100 * rows.set_index("seed")[METRIC]).dropna().to_dict()
        for (arm, kernel), rows in groups
    }


def _accuracies(values: Values, arms: list[str], kernels: list[int]) -> list[str]:
    head = "".join(f" kernel {kernel} | − default |" for kernel in kernels)
    lines = [f"| start |{head}", "|---" * (2 * len(kernels) + 1) + "|"]
    for arm in arms:
        cells = []
        for kernel in kernels:
            own, reference = values[arm, kernel], values["default", kernel]
            difference = "" if arm == "default" else difference_text(paired_difference(own, reference))
            cells += [str(t_interval(list(own.values()))), difference]
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return lines


def _gaps(values: Values, arms: list[str], kernels: list[int]) -> list[str]:
    """Return what freezing costs each start, and by how much more at the largest kernel than at the smallest."""
    last = f" growth, {kernels[-1]} to {kernels[0]} |" if len(kernels) > 1 else ""
    head = "".join(f" gap at kernel {kernel} |" for kernel in kernels)
    lines = [f"| start |{head}{last}", "|---" * (len(kernels) + 1 + bool(last)) + "|"]
    for arm in (arm for arm in arms if arm + FROZEN in arms):
        gaps = [paired_values(values[arm + FROZEN, kernel], values[arm, kernel]) for kernel in kernels]
        cells = [difference_text(t_interval(list(gap.values()))) for gap in gaps]
        cells += [difference_text(paired_difference(gaps[0], gaps[-1]))] if last else []
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return lines


def parse() -> argparse.Namespace:
    """Read the command line; what it does not know is passed to every run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment")
    parser.add_argument("--learned", help="a trained ConvMixer whose covariances are transferred; none without")
    parser.add_argument("--kernels", default="9,3")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--threads", type=int, default=1, help="part of a run's identity")
    parser.add_argument("--output", type=Path, required=True)
    arguments, arguments.extra = parser.parse_known_args()
    return arguments


if __name__ == "__main__":
    try:
        main()
    except StructuredInitError as error:
        raise SystemExit(f"conv_starts: {error}") from None

"""Deform classically trained networks to the token softmax while they are fine-tuned, each beside its control.

python -m benchmarks.deformation cct_2_3x2_cifar10_short --trained runs/cct_2 --output runs/deformation

``--trained`` is a comparison whose arm ``default`` gives the networks, one for each seed. What is trained is
``structured-init compare``, once for each of them, which goes on where it was stopped. Further arguments go to every
run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from comparison.command import compare
from comparison.report.lines import curve_figure
from comparison.report.theme import save, settle, styles
from comparison.results.effects import curves_by_seed
from comparison.results.metric import Metric
from comparison.results.paired import paired_difference, t_interval
from comparison.results.records import find_runs, load_curves, load_results
from comparison.results.tables import difference_text
from structured_init.errors import StructuredInitError
from structured_init.files import write_text

CONTROL = "default"
ARMS = [CONTROL, *(f"token_softmax/{name}" for name in ("remix_100", "deform", "deform_early", "deform_tokens"))]


def main() -> None:
    """Train what is missing, then print and write the table and the learning curves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment")
    parser.add_argument("--trained", type=Path, required=True)
    parser.add_argument("--learning-rate", default="5e-4")
    parser.add_argument("--output", type=Path, required=True)
    arguments, further = parser.parse_known_args()
    folders = []
    for seed, weights in trained_networks(arguments.trained).items():
        folders.append(arguments.output / f"seed_{seed}")
        command = ["-c", arguments.experiment, "--inits", ",".join(ARMS), "--seeds", str(seed), "--no-open"]
        rate = ["--model.init_args.optimizer.init_args.lr", arguments.learning_rate]
        start = ["--model.init_args.network_args.weights", str(weights)]
        compare([*command, *rate, *start, "--output", str(folders[-1]), *further])
    text = table(pd.concat([load_results(folder) for folder in folders]))
    write_text(arguments.output / "deformation.md", text + "\n")
    draw(pd.concat([load_curves(folder) for folder in folders]), arguments.output)
    print(text)


def trained_networks(folder: Path) -> dict[int, Path]:
    """Return the last checkpoint of every complete run of ``default``, by seed.

    Raises:
        StructuredInitError: there is none, or a seed has several, of a grid or of learning rates.
    """
    runs = [run for run in find_runs(folder) if run.arm == CONTROL and run.result is not None]
    if not runs:
        raise StructuredInitError(f"'{folder}' has no complete run of '{CONTROL}'")
    if len({run.seed for run in runs}) < len(runs):
        raise StructuredInitError(f"'{folder}' has several runs of '{CONTROL}' for a seed: give one without a grid")
    return {run.seed: (run.folder / "checkpoints" / "last.ckpt").resolve() for run in runs}


def table(results: pd.DataFrame) -> str:
    """Return test accuracies, and differences to the control, in Markdown."""
    by_arm = {
        arm: (100 * rows.set_index("seed")["test/accuracy"]).to_dict()
        for arm, rows in results.groupby("arm", sort=False)
    }
    lines = [f"| | seeds | test accuracy % | − {CONTROL} |", "|---|---|---|---|"]
    for arm, values in by_arm.items():
        apart = "" if arm == CONTROL else difference_text(paired_difference(values, by_arm[CONTROL]))
        lines.append(f"| `{arm}` | {len(values)} | {t_interval(list(values.values()))} | {apart} |")
    unit = "mean ± half of the 95 % t interval over trained networks; differences are of the same network."
    return "\n".join([*lines, "", unit])


def draw(curves: pd.DataFrame, folder: Path) -> None:
    """Write the validation accuracy over the steps as ``deformation.svg`` and ``.png``."""
    by_arm = curves_by_seed(curves, "val/accuracy", "step")
    figure = curve_figure(by_arm, styles(list(by_arm), CONTROL), Metric("val/accuracy", "max"), "step", CONTROL)
    settle(figure)
    save(figure, folder, "deformation")


if __name__ == "__main__":
    main()

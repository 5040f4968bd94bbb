"""The comparisons behind four pages of results: each is ``structured-init compare`` with its arguments, then tables.

python -m benchmarks.experiments certified --output runs/certified
python -m benchmarks.experiments certified -c resnet9_cifar10_short --output runs/certified_resnet9
python -m benchmarks.experiments filters --weights CONVMIXER.pth --output runs/filters
python -m benchmarks.experiments recall --only copying --output runs/recall
python -m benchmarks.experiments deformation --weights runs/compact/cifar10_bfloat16 --output runs/deformation

A comparison goes on where it was stopped. ``-c`` takes the place of the experiment's own configuration, and what is not
known here goes to every run (``--seeds 0-4``, ``--trainer.accelerator gpu``).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from benchmarks import experiment_tables
from comparison.command import compare
from comparison.results.folder import find_runs
from comparison.results.records import load_curves, load_results
from structured_init.errors import StructuredInitError
from structured_init.files import write_text

NETWORK = "model.init_args.network_args"
CONVOLUTION, KERNEL, STATE = (f"{NETWORK}.{name}" for name in ("conv", "kernel_size", "state_size"))
FILTERS = ("default", "covariance", "covariance_trace", "filters_impulse", "filters_box")
FROZEN = "_frozen"
MIMETIC = "mimetic_state_space"
BOTH = f"default,{MIMETIC}"
COMPONENTS = ",".join([BOTH, *(f"{MIMETIC}_no_{name}" for name in ("decay", "step", "correlate", "convolution"))])
SLOW_DECAY = f"slow_decay={MIMETIC}{{step=false,correlate=false,convolution=false}}"
REFERENCES = f"default,mamba_reference,{MIMETIC},mamba_reference_mimetic"
MQAR = [
    "-c", "mamba2_mqar_short", "--data.init_args.task_args", "{vocab_size: 64, num_pairs: 4}",
    "--data.init_args.min_length", "32", "--data.init_args.max_length", "32", "--trainer.max_epochs", "3",
]  # fmt: skip
COPYING = [
    "-c", "mamba2_copying_short", "--data.init_args.task_args.num_letters", "26", "--data.init_args.max_length", "12",
]  # fmt: skip
SMALL = [f"--{STATE}", "16"]
RATES = "1e-3,3e-3,1e-2,3e-2"
RECALL: dict[str, list[str]] = {
    "mqar_learning_rates": [*MQAR, *SMALL, "--inits", BOTH, "--seeds", "0-2", "--learning-rates", RATES],
    "mqar_components": [*MQAR, *SMALL, "--inits", COMPONENTS, "--seeds", "0-4", "--learning-rates", "1e-2,3e-2"],
    "mqar_reference": [*MQAR, *SMALL, "--inits", REFERENCES, "--seeds", "0-4", "--learning-rates", "1e-2,3e-2"],
    "mqar_20_seeds": [
        *[*MQAR, *SMALL, "--inits", f"default,mamba_reference,{MIMETIC},{SLOW_DECAY}"],
        *["--seeds", "0-19", "--learning-rates", "3e-2"],
    ],
    "mqar_states": [
        *[*MQAR, "--inits", BOTH, "--seeds", "0-2", "--learning-rates", "1e-2,3e-2"],
        *["--grid", f"{STATE}=8,32,64,128"],
    ],
    "mqar_reference_states": [
        *[*MQAR, "--inits", REFERENCES, "--seeds", "0-2", "--learning-rates", "3e-2"],
        *["--grid", f"{STATE}=8,32,64"],
    ],
    "copying_learning_rates": [
        *[*COPYING, *SMALL, "--inits", BOTH, "--seeds", "0-1", "--learning-rates", "3e-3,1e-2,3e-2"],
    ],
    "copying": [
        *[*COPYING, *SMALL, "--inits", BOTH, "--seeds", "0-4", "--learning-rates", "1e-2"],
        *["--trainer.max_epochs", "8"],
    ],
    "copying_reference": [
        *[*COPYING, *SMALL, "--inits", REFERENCES, "--seeds", "0-4", "--learning-rates", "1e-2"],
        *["--trainer.max_epochs", "8"],
    ],
    "copying_components": [
        *[*COPYING, *SMALL, "--inits", COMPONENTS, "--seeds", "0-4", "--learning-rates", "1e-2"],
        *["--trainer.max_epochs", "12"],
    ],
}  # fmt: skip
DEFORMED = ["default", *(f"token_softmax/{name}" for name in ("remix_100", "deform", "deform_early", "deform_tokens"))]

Commands = dict[str, list[str]]  # folder below the output → arguments of compare
Results = dict[str, pd.DataFrame]  # the same folder → complete runs


def certified(options: argparse.Namespace) -> Commands:
    """Three kinds of convolution under the certified recipe."""
    grid = f"{CONVOLUTION}=cayley,orthogonium,plain"
    return {"": ["-c", "kw_large_cifar10_short", "--inits", "default", "--grid", grid]}


def filters(options: argparse.Namespace) -> Commands:
    """Depthwise filters, trained and frozen, at two kernel sizes; with ``weights`` some are learned from a network."""
    arms = [name + suffix for suffix in ("", FROZEN) for name in FILTERS]
    if options.weights:
        learned = f"covariance_learned{{covariances={options.weights}"
        arms += [f"learned={learned}}}", f"learned{FROZEN}={learned},frozen=true}}"]
    words = ["-c", "convmixer_cifar10_short", "--inits", ",".join(arms), "--grid", f"{KERNEL}=9,3"]
    return {"": words}


def recall(options: argparse.Namespace) -> Commands:
    """Mamba-2 on associative recall and copying: learning rates swept, components removed, states of 8 to 128.

    Raises:
        StructuredInitError: ``only`` names none of them.
    """
    unknown = set(options.only or ()) - set(RECALL)
    if unknown:
        raise StructuredInitError(f"recall has no comparison '{min(unknown)}': it has {', '.join(RECALL)}")
    return {name: RECALL[name] for name in options.only or RECALL}


def deformation(options: argparse.Namespace) -> Commands:
    """Each network of ``default`` in the comparison ``weights``, fine-tuned to the token softmax and beside it."""
    if not options.weights:
        raise StructuredInitError("deformation needs --weights, the folder of a comparison that has trained 'default'")
    words = ["-c", "cct_2_3x2_cifar10_short", "--inits", ",".join(DEFORMED)]
    words += ["--model.init_args.optimizer.init_args.lr", "5e-4"]
    return {
        f"seed_{seed}": [*words, "--seeds", str(seed), f"--{NETWORK}.weights", str(checkpoint)]
        for seed, checkpoint in trained_networks(Path(options.weights)).items()
    }


def trained_networks(folder: Path) -> dict[int, Path]:
    """Return the last checkpoint of every complete run of ``default``, by seed.

    Raises:
        StructuredInitError: there is none, or a seed has several, of a grid or of learning rates.
    """
    runs = [run for run in find_runs(folder) if run.arm == "default" and run.result is not None]
    if not runs:
        raise StructuredInitError(f"'{folder}' has no complete run of 'default'")
    if len({run.seed for run in runs}) < len(runs):
        raise StructuredInitError(f"'{folder}' has several runs of 'default' for a seed: give one without a grid")
    return {run.seed: (run.folder / "checkpoints" / "last.ckpt").resolve() for run in runs}


@dataclass(frozen=True)
class Experiment:
    """What is compared, and how its results are shown.

    Attributes:
        commands: what is trained, folder by folder.
        tables: of all results so far, in Markdown.
        draw: writes pictures of the learning curves of all folders into a folder, where the page shows its own.
    """

    commands: Callable[[argparse.Namespace], Commands]
    tables: Callable[[Results], str]
    draw: Callable[[pd.DataFrame, Path], None] | None = None


EXPERIMENTS = {
    "certified": Experiment(certified, lambda found: experiment_tables.certified(found[""], CONVOLUTION)),
    "filters": Experiment(filters, lambda found: experiment_tables.filters(found[""], KERNEL)),
    "recall": Experiment(recall, lambda found: experiment_tables.recall(found, STATE)),
    "deformation": Experiment(
        deformation, lambda found: experiment_tables.deformation(pd.concat(found.values())), experiment_tables.draw
    ),
}


def main() -> None:
    """Run what is missing; write the tables after each comparison, and print them."""
    options, further = parse()
    experiment, found = EXPERIMENTS[options.experiment], {}
    for folder, words in experiment.commands(options).items():
        output = options.output / folder
        compare([*with_config(words, options.config), "--no-open", "--output", str(output), *further])
        found[folder] = load_results(output)
        text = experiment.tables(found)
        write_text(options.output / f"{options.experiment}.md", text + "\n")
    if experiment.draw:
        experiment.draw(pd.concat([load_curves(options.output / folder) for folder in found]), options.output)
    print(text)


def with_config(words: list[str], config: list[str] | None) -> list[str]:
    """Return a command with other configurations in place of its own."""
    return [*(word for name in config for word in ("-c", name)), *words[2:]] if config else words


def parse() -> tuple[argparse.Namespace, list[str]]:
    """Read the command line; what it does not know is passed to every run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("-c", "--config", action="append", help="in place of the experiment's own; several layer")
    parser.add_argument("--weights", help="filters: a trained ConvMixer; deformation: the folder of a comparison")
    parser.add_argument("--only", nargs="+", help="recall: some of its comparisons")
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_known_args()


if __name__ == "__main__":
    try:
        main()
    except StructuredInitError as error:
        raise SystemExit(f"experiments: {error}") from None

"""Starts of Mamba-2 on associative recall and copying: learning rates swept, components removed, states of 8 to 128.

python -m benchmarks.recall_starts --output runs/recall

What is trained is ``structured-init compare``, which goes on where it was stopped; this prints the tables of its
results. Further arguments go to every run (``--trainer.accelerator gpu``).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from comparison.command import compare
from comparison.results.paired import paired_difference, t_interval
from comparison.results.records import load_results
from comparison.results.tables import difference_text
from structured_init.files import write_text

STATE = "model.init_args.network_args.state_size"
MIMETIC = "mimetic_state_space"
WITHOUT = [f"{MIMETIC}_no_{component}" for component in ("decay", "step", "correlate", "convolution")]
BOTH = f"default,{MIMETIC}"
MQAR = [
    "-c", "mamba2_mqar_short", "--data.init_args.task_args", "{vocab_size: 64, num_pairs: 4}",
    "--data.init_args.min_length", "32", "--data.init_args.max_length", "32", "--trainer.max_epochs", "3",
]  # fmt: skip
COPYING = [
    "-c", "mamba2_copying_short", "--data.init_args.task_args.num_letters", "26", "--data.init_args.max_length", "12",
    f"--{STATE}", "16",
]  # fmt: skip
SMALL = [f"--{STATE}", "16"]
COMPARISONS: dict[str, tuple[str, list[str]]] = {
    "mqar_learning_rates": (
        "Associative recall, 4 pairs in 32 tokens, state 16: which learning rates succeed",
        [*MQAR, *SMALL, "--inits", BOTH, "--seeds", "0-2", "--learning-rates", "1e-3,3e-3,1e-2,3e-2"],
    ),
    "mqar_components": (
        "The same: each component removed",
        [*MQAR, *SMALL, "--inits", ",".join([BOTH, *WITHOUT]), "--seeds", "0-4", "--learning-rates", "1e-2,3e-2"],
    ),
    "mqar_states": (
        "The same: other states",
        [*MQAR, "--inits", BOTH, "--seeds", "0-2", "--learning-rates", "1e-2,3e-2", "--grid", f"{STATE}=8,32,64,128"],
    ),
    "copying_learning_rates": (
        "Copying up to 12 of 26 letters, state 16, 1,000 steps: which learning rates succeed",
        [*COPYING, "--inits", BOTH, "--seeds", "0-1", "--learning-rates", "3e-3,1e-2,3e-2"],
    ),
    "copying": (
        "The same in 1,600 steps, at the rate that was best for both",
        [*COPYING, "--inits", BOTH, "--seeds", "0-4", "--learning-rates", "1e-2", "--trainer.max_epochs", "8"],
    ),
    "copying_components": (
        "The same in 2,400 steps: each component removed",
        [
            *[*COPYING, "--inits", ",".join([BOTH, *WITHOUT]), "--seeds", "0-4", "--learning-rates", "1e-2"],
            *["--trainer.max_epochs", "12"],
        ],
    ),
}


def main() -> None:
    """Run what is missing, then print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=COMPARISONS, default=list(COMPARISONS))
    parser.add_argument("--output", type=Path, required=True)
    arguments, further = parser.parse_known_args()
    parts = []
    for name in arguments.only:
        title, command = COMPARISONS[name]
        compare([*command, "--no-open", "--output", str(arguments.output / name), *further])
        parts += [f"## {title}", "", *tables(load_results(arguments.output / name)), ""]
        write_text(arguments.output / "recall.md", "\n".join([*parts, NOTE, ""]))
    print("\n".join([*parts, NOTE]))


NOTE = (
    "Percent of test answers that are right in every token, at one, two and four times the length of training; mean ± "
    "half of the 95 % t interval over seeds, differences within a seed at one length. The learning rate of each start "
    "is the one with the best validation."
)


def tables(results: pd.DataFrame) -> list[str]:
    """Return exact matches by learning rate on the validation split, and those of the chosen rate on the test split.

    Args:
        results: of :func:`load_results`, of a comparison that chose learning rates.
    """
    if STATE in results:
        results = results.assign(**{STATE: results[STATE].astype(int)}).sort_values(STATE, kind="stable")
    return [*_sweep(results), "", *_chosen(results)] if results["learning_rate"].nunique() > 1 else _chosen(results)


def _points(results: pd.DataFrame) -> list[str]:
    """Return what tells the rows of a table apart beside the learning rate and the seed."""
    return [*([STATE] if STATE in results else []), "arm"]


def _label(key: tuple[object, ...]) -> str:
    *state, arm = key
    return " | ".join([str(arm), *(str(each) for each in state)])


def _head(results: pd.DataFrame) -> str:
    return "| start | " + ("state | " if STATE in results else "")


def _sweep(results: pd.DataFrame) -> list[str]:
    rates = sorted(results["learning_rate"].unique())
    columns = [f"lr {rate:g}" for rate in rates]
    lines = [_head(results) + " | ".join(columns) + " |"]
    lines.append("|---" * (lines[0].count("|") - 1) + "|")
    for key, rows in results.groupby(_points(results), sort=False):
        cells = [_share(rows.loc[rows["learning_rate"] == rate, "val/exact_match"]) for rate in rates]
        lines.append(f"| {_label(key)} | " + " | ".join(cells) + " |")
    return ["Validation, by learning rate:", "", *lines]


def _chosen(results: pd.DataFrame) -> list[str]:
    results = results[results["chosen"]]
    names = sorted(
        (name for name in results if name.startswith("test/exact_match_")),
        key=lambda name: int(name.rpartition("_")[2]),
    )
    lengths = [f"{factor}×" for factor in (1, 2, 4)]
    lines = [_head(results) + "rate | seeds | " + " | ".join(lengths) + " | 1×, − default |"]
    lines.append("|---" * (lines[0].count("|") - 1) + "|")
    groups = dict(list(results.groupby(_points(results), sort=False)))
    shortest = {key: (100 * rows.set_index("seed")[names[0]]).to_dict() for key, rows in groups.items()}
    for key, rows in groups.items():
        reference = shortest[(*key[:-1], "default")]
        apart = "" if key[-1] == "default" else difference_text(paired_difference(shortest[key], reference))
        cells = [f"{rows['learning_rate'].iloc[0]:g}", str(len(rows)), *(_share(rows[name]) for name in names), apart]
        lines.append(f"| {_label(key)} | " + " | ".join(cells) + " |")
    return ["Test, at the rate that was chosen:", "", *lines]


def _share(values: pd.Series) -> str:
    return str(t_interval((100 * values.dropna()).tolist()))


if __name__ == "__main__":
    main()

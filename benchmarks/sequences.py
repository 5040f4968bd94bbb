"""Where previous-token and induction heads matter: the comparisons behind ``results/sequences.md``, and the page.

python -m benchmarks.experiments sequences --output runs/sequences        # all of it: days of two cores
python -m benchmarks.experiments sequences --only characters recall_8_pairs --output runs/sequences
python -m benchmarks.sequences runs/sequences --output benchmarks/results  # the page, from what there is

Each comparison has both controls beside its arms: the same positions, and the same weights scrambled.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from comparison.results.controls import find_scrambled
from comparison.results.effects import curves_by_seed
from comparison.results.metric import Metric
from comparison.results.records import (
    Manifest,
    at_point,
    find_runs,
    load_curves,
    load_results,
    point_label,
    points,
    read_manifest,
)
from comparison.results.tables import headline, number
from comparison.results.targets import Curve, final_mean, steps_to
from structured_init.errors import StructuredInitError
from structured_init.files import write_text

TEXT = "default,previous_token,two=previous_token{offsets=[1,2]}"
ONE = "one=previous_token{offsets=[1]}"
BOTH = ["--controls", "auto"]
FIVE, THREE = ["--seeds", "0-4"], ["--seeds", "0-2"]
LAYERS, WIDTH, HEADS = (
    f"model.init_args.network_args.{name}" for name in ("num_hidden_layers", "hidden_size", "num_attention_heads")
)
PAIRS, LENGTH = "data.init_args.task_args.num_pairs", "data.init_args.{}_length"
HALVES = (0.25, 0.5, 0.75, 1.0)  # of the way from the baseline's first evaluation to its last


@dataclass(frozen=True)
class Question:
    """One comparison.

    Attributes:
        asks: what it is to answer.
        words: arguments of ``structured-init compare``.
    """

    asks: str
    words: list[str]


def recall(host: str, inits: str, pairs: int, length: int) -> list[str]:
    """Return the arguments of associative recall of so many pairs in so many tokens, tested at that length."""
    lengths = [word for end in ("min", "max") for word in (f"--{LENGTH.format(end)}", str(length))]
    lengths += ["--data.init_args.test_lengths", f"[{length}]"]
    return ["-c", host, "--inits", inits, *BOTH, *THREE, f"--{PAIRS}", str(pairs), *lengths]


def steps(count: int, of_epoch: int) -> list[str]:
    """Return the arguments that train for so many steps where an epoch is limited to some."""
    return ["--trainer.max_epochs", str(count // of_epoch)]


QUESTIONS: dict[str, Question] = {
    "characters": Question(
        "Characters of Shakespeare, 600 steps: how much, beside its controls?",
        ["-c", "gpt_shakespeare_short", "--inits", f"{TEXT},{ONE}", *BOTH, *FIVE],
    ),
    "python_docs": Question(
        "Characters of Python's documentation, 600 steps: the same?",
        ["-c", "gpt_python_docs_short", "--inits", f"{TEXT},{ONE}", *BOTH, *FIVE],
    ),
    "architecture": Question(
        "The same beside what people build in: a token shift, a short convolution before attention",
        [
            *["-c", "gpt_shakespeare_short", *BOTH, *FIVE, "--inits"],
            "default,previous_token,token_mixing/token_shift,token_mixing/short_convolution",
        ],
    ),
    "characters_long": Question(
        "Characters of Shakespeare, 3,000 steps: does the gain persist, shrink to a head start, or turn?",
        ["-c", "gpt_shakespeare_short", "--inits", "default,previous_token", *BOTH, *FIVE, *steps(3000, 150)],
    ),
    "python_docs_long": Question(
        "Characters of Python's documentation, 3,000 steps: the same?",
        ["-c", "gpt_python_docs_short", "--inits", "default,previous_token", *BOTH, *FIVE, *steps(3000, 150)],
    ),
    **{
        f"bpe_{count}": Question(
            f"WikiText-2 with a byte-pair vocabulary of 2,048, {count:,} steps: which mix of offsets never loses?",
            ["-c", "gpt_wikitext_short", "--inits", f"{TEXT},{ONE}", *BOTH, *FIVE, *steps(count, 125)],
        )
        for count in (500, 1000, 2000, 5000)
    },
    "learning_rates": Question(
        "Characters of Shakespeare, with the learning rate swept for every arm",
        ["-c", "gpt_shakespeare_short", "--inits", TEXT, *BOTH, *THREE, "--learning-rates", "1e-3,3e-3,1e-2"],
    ),
    "depth": Question(
        "Characters of Shakespeare, 2 to 12 layers",
        ["-c", "gpt_shakespeare_short", "--inits", TEXT, *BOTH, *THREE, "--grid", f"{LAYERS}=2,4,8,12"],
    ),
    "width": Question(
        "Six layers of width 384, as in the long experiment on Shakespeare: does it transfer?",
        [
            *["-c", "gpt_shakespeare_short", "--inits", "default,previous_token", *BOTH, "--seeds", "0-1"],
            *[f"--{WIDTH}", "384", f"--{LAYERS}", "6", f"--{HEADS}", "6"],
            *["--model.init_args.optimizer.init_args.lr", "1e-3", *steps(1500, 150)],
        ],
    ),
    "mimetic": Question(
        "Is there a mimetic initialization that helps language, once its values have the right size?",
        [
            *["-c", "gpt_shakespeare_short", *THREE, *BOTH, "--inits"],
            "default,mimetic_language,mimetic_stream,mimetic_stream_all,value_output_stream,"
            "small=mimetic_stream_all{stream_share=0.15},negative=value_output_stream{vo_sign=-1}",
        ],
    ),
    **{
        f"recall_{pairs}_pairs": Question(
            f"Associative recall of {pairs} pairs in {8 * pairs} tokens, 1,600 steps",
            recall("gpt_mqar_short", "default,previous_token,induction", pairs, 8 * pairs),
        )
        for pairs in (4, 8, 16, 32)
    },
    **{
        f"recall_{length}_tokens": Question(
            f"Associative recall of 8 pairs in {length} tokens",
            recall("gpt_mqar_short", "default,induction", 8, length),
        )
        for length in (128, 256, 512)
    },
    "recall_llama": Question(
        "Associative recall of 8 pairs in 64 tokens, under rotary positions",
        recall("llama_mqar_short", "default,previous_token,induction", 8, 64),
    ),
    "recall_mamba2": Question(
        "The same by Mamba-2, with and without its own mimetic initialization",
        [
            *["-c", "mamba2_mqar_short", "--inits", "default,mimetic_state_space", *THREE],
            *["--grid", "model.init_args.network_args.state_size=16,32,64"],
        ],
    ),
    **{
        f"encoder_{name}": Question(
            f"An encoder from scratch on {words}: heads that look both ways, or back alone",
            [
                *["-c", f"bert_{name}_short", *BOTH, *FIVE, "--inits"],
                "default,previous_token,neighbours=previous_token{offsets=[1,-1]},back=previous_token{offsets=[1,2]}",
            ],
        )
        for name, words in (("trec", "TREC's questions"), ("sst2", "SST-2"))
    },
}


def commands(only: list[str] | None) -> dict[str, list[str]]:
    """Return the comparisons that are asked for, all where ``None``.

    Raises:
        StructuredInitError: one of them is none.
    """
    unknown = set(only or ()) - set(QUESTIONS)
    if unknown:
        raise StructuredInitError(f"sequences has no comparison '{min(unknown)}': it has {', '.join(QUESTIONS)}")
    return {name: QUESTIONS[name].words for name in only or QUESTIONS}


def page(folder: Path) -> str:
    """Return the page of all comparisons that have any complete run: question by question, in their order.

    Args:
        folder: with one comparison each, under its name.

    Raises:
        StructuredInitError: there is none.
    """
    parts = [section(name, folder / name) for name in QUESTIONS if (folder / name / "comparison.json").is_file()]
    if not any(parts):
        raise StructuredInitError(f"'{folder}' has no complete run of a comparison such as '{next(iter(QUESTIONS))}'")
    how = "Means over seeds ± half of the 95 % t interval; differences are paired within a seed."
    head = ["# Sequences: previous-token and induction heads", "", "    python -m benchmarks.experiments sequences", ""]
    return "\n".join([*head, how, "", *filter(None, parts)])


def section(name: str, folder: Path) -> str:
    """Return the heading, the table of differences and that of targets of one comparison; empty without runs."""
    results, manifest, curves = load_results(folder), read_manifest(folder), load_curves(folder)
    if not len(results):
        return ""
    scrambled = find_scrambled(manifest, find_runs(folder))
    table = headline(folder, manifest, curves=curves, scrambled=scrambled)
    asked = f"`{name}`: {QUESTIONS[name].asks}"
    return "\n".join([f"## {asked}", "", table, "", *targets(manifest, curves)])


def targets(manifest: Manifest, curves: pd.DataFrame) -> list[str]:
    """Return a table of the steps and seconds that each arm takes to what the baseline has along its own way.

    The targets lie at a quarter, half, three quarters and all of the way from the baseline's first evaluation to its
    last, in the metric of the comparison on the validation split.

    Args:
        manifest: of the comparison.
        curves: of ``load_curves``.
    """
    lines: list[str] = []
    metric = Metric(Metric(manifest["metric"], manifest["mode"]).on_validation, manifest["mode"])
    for point in points(manifest):
        known = at_point(curves[curves["chosen"].astype(bool)], point)
        by_step, by_second = (curves_by_seed(known, metric.name, axis) for axis in ("step", "seconds"))
        values = _values(by_step.get(manifest["baseline"], {}))
        if values is None:
            continue
        label = f"**{point_label(point)}**: s" if point else "S"
        wanted = [number(metric.factor * value, 2) for value in values]
        lines += [f"{label}teps (seconds) to {metric.label} of the baseline on its way:", ""]
        lines += ["| arm | " + " | ".join(wanted) + " |", "|---" * (1 + len(wanted)) + "|"]
        for arm, of_seeds in by_step.items():
            cells = [_cell(of_seeds, by_second.get(arm, {}), value, manifest["mode"]) for value in values]
            lines.append(f"| {arm} | " + " | ".join(cells) + " |")
        lines.append("")
    return lines


def _values(of_seeds: Mapping[int, Curve]) -> list[float] | None:
    """The targets: parts of the baseline's way from first to last evaluation; None without one that goes anywhere."""
    last = final_mean(of_seeds)
    starts = [curve[0][1] for curve in of_seeds.values() if curve and math.isfinite(curve[0][1])]
    if last is None or not starts or any(len(curve) < 2 for curve in of_seeds.values()):
        return None
    first = math.fsum(starts) / len(starts)
    return [first + share * (last - first) for share in HALVES]


def _cell(by_step: Mapping[int, Curve], by_second: Mapping[int, Curve], target: float, mode: str) -> str:
    """The mean over the seeds that get there, and how many do not."""
    reached, missing = _mean(by_step, target, mode)
    if reached is None:
        return "not reached"
    seconds, _ = _mean(by_second, target, mode)
    text = f"{reached:,.0f}" + ("" if seconds is None else f" ({seconds:,.0f} s)")
    return text + (f", not by {missing} of {len(by_step)}" if missing else "")


def _mean(of_seeds: Mapping[int, Curve], target: float, mode: str) -> tuple[float | None, int]:
    places = [steps_to(curve, target, mode) for curve in of_seeds.values()]
    found = [place for place in places if place is not None]
    return (math.fsum(found) / len(found) if found else None), len(places) - len(found)


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="with the comparisons, as benchmarks.experiments has written them")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    write_text(options.output / "sequences.md", page(options.folder) + "\n")


if __name__ == "__main__":
    try:
        main()
    except StructuredInitError as error:
        raise SystemExit(f"sequences: {error}") from None

"""What ``find`` shows of its winner: a comparison with the default and with itself scrambled, on fresh seeds."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from comparison.command.comparing import run_comparison
from comparison.command.options import compare_parser
from comparison.results.controls import SCRAMBLED
from comparison.results.effects import Effect, Effects
from comparison.results.records import read_manifest
from comparison.results.tables import decision_text, interval_text
from comparison.run.deciding import look
from comparison.run.time_limit import TimeLimit

EVIDENCE = "evidence"  # folder of the runs that show
FRESH = "100-104"  # seeds of the evidence, which no race takes
DIGITS = 2


def show(
    options: argparse.Namespace,
    further: Sequence[str],
    command: str,
    limit: TimeLimit,
    arms: Mapping[str, Path],
    training: Sequence[str],
    budget: float,
) -> None:
    """Compare the winner with the default on fresh seeds and the test split, until it is decided.

    Args:
        options: of ``find``.
        further: arguments for every run.
        command: the whole command line, to repeat it.
        limit: the time that all of it may take.
        arms: label → configuration; of the default, then of the winner.
        training: options of how runs are trained, as ``compare`` takes them.
        budget: seconds of training.
    """
    inits, reference = ",".join(f"{label}={file}" for label, file in arms.items()), next(iter(arms))
    words = [*(word for name in options.config for word in ("-c", name)), "--inits", inits, "--baseline", reference]
    words += ["--seeds", FRESH, "--margin", repr(options.margin), "--no-open", "--controls", options.controls]
    words += ["--output", str(Path(options.output) / EVIDENCE), *training, "--max-seeds", str(options.max_seeds)]
    words += ["--budget", f"{max(int(budget), 1)}"] if math.isfinite(budget) else []
    run_comparison(compare_parser().parse_args(words), further, command, limit)


def verdict(folder: Path, label: str, name: str, reference: str) -> tuple[bool, str]:
    """Return whether the winner is better than the default, and what the evidence says in words.

    Args:
        folder: of the search.
        label: of the winner.
        name: of the winner, as it is told.
        reference: name of the default.
    """
    manifest = read_manifest(folder / EVIDENCE)
    (found,) = look(folder / EVIDENCE, manifest)
    arm = next((arm for arm in found.arms if arm.name == label), None)
    effect = arm.baseline if arm else None
    if arm is None or effect is None or effect.decision is None:
        return False, f"{name} against {reference}: no seed has both, undecided"
    seeds = f"{effect.interval.samples} fresh seeds"
    text = f"{name} against {reference}: {_size(effect, found)} on the test split, {seeds}, {effect.decision.kind}"
    if arm.scrambled is not None and arm.scrambled.decision is not None:
        kind = arm.scrambled.decision.kind
        text += f"; against itself scrambled: {_size(arm.scrambled, found)}, {decision_text(arm.scrambled.decision, 2)}"
        text += "" if kind == "better" else " (it is not shown that its structure matters)"
    elif label + SCRAMBLED not in manifest["arms"]:
        text += "; not compared with itself scrambled"
    return effect.decision.kind == "better", text


def _size(effect: Effect, found: Effects) -> str:
    return f"{interval_text(effect.interval, DIGITS, signed=True)} {found.metric.unit}".rstrip()

"""The initialization that a model should have: a race on validation, its winner then on fresh seeds and the test."""

from __future__ import annotations

import argparse
import dataclasses
import signal
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from comparison.command.comparing import Training, launcher_of, run_comparison, say
from comparison.command.options import compare_parser
from comparison.contrasts.contrasts import Contrast
from comparison.contrasts.controls import SCRAMBLED
from comparison.contrasts.place import PlaceResult
from comparison.plan.arms import parse_arms
from comparison.plan.candidates import automatic
from comparison.plan.comparison import Comparison
from comparison.plan.experiment import ANYWHERE
from comparison.plan.further_seeds import FIRST_LOOK, question_from
from comparison.plan.prepare import prepare, refuse_further
from comparison.plan.race import Race
from comparison.runs.folder import Run, read_manifest
from comparison.runs.metric import Metric
from comparison.say.headline import decision_text, look
from comparison.tables import count, interval_text
from comparison.train.time_limit import LEFT, TimeLimit
from lightning_modules.cli.configurations import find_config, merged
from structured_init.presets import split_outside_brackets
from structured_init.util.errors import StructuredInitError, begin_writing
from structured_init.util.files import write_json, write_text

RACE = "race"  # folder of the runs that choose
EVIDENCE = "evidence"  # folder of the runs that show
OPTIMIZERS = "optim"  # folder of their configurations, and the key of a grid
FRESH = 100  # the first seed of the evidence, which no race takes
# Options that a comparison inside of a search takes from it.
TRAINING = ("launcher", "threads", "parallel", "cpus_per_run", "gpus_per_run", "ray_address", "metric", "mode")


def run_find(options: argparse.Namespace, further: Sequence[str], command: str, limit: TimeLimit) -> None:
    """Race, look at the winner anew, and write what one should use."""
    console, folder = Console(highlight=False), Path(options.output)
    launcher = launcher_of(options, limit)  # it imports the libraries beside what is prepared here
    try:
        comparison, left_out = _prepare_race(options, further, command)
        runs: dict[str, Run] = {}  # the first of each candidate
        for run in comparison.runs():
            runs.setdefault(candidate_of(run), run)
        for remark in comparison.remarks:
            say(console, remark)
        others = f" {len(left_out)} others do not fit: find.json will say why." if left_out else ""
        say(console, f"{len(runs)} candidates, the default among them.{others}")
        begin_writing(signal.SIGTERM)
        found = _race(Training(comparison, comparison.write(), launcher, console, limit), list(runs))
    finally:
        launcher.close()
    record = {"command": command, "candidates": list(runs), "left_out": left_out, **_record(found, comparison)}
    text = _decide(options, further, command, limit, found, comparison, runs)
    text = f"All {len(runs)} candidates tried. {text}"
    write_json(folder / "find.json", {**record, "verdict": text})
    say(console, text)


def candidate_of(run: Run) -> str:
    """Return the name of a candidate: an arm, under an optimizer or at a learning rate where these are raced."""
    parts = [run.arm, *(value for _, value in run.point)]
    if run.learning_rate is not None:
        parts.append(f"{run.learning_rate:g}")
    return "@".join(parts)


def label_of(candidate: str) -> str:
    """Return a candidate's name as an arm's label, which cannot have an ``@``."""
    return candidate.replace("@", "_at_")


def _race(training: Training, candidates: Sequence[str]) -> Race:
    """Train candidates seed by seed, and drop those that lose; what was trained before is not again."""
    comparison = training.comparison
    metric = Metric(comparison.metric, comparison.mode)
    every = comparison.runs()
    found = Race(candidates, candidates[0], comparison.mode)
    for seed in comparison.seeds:
        racing = {found.reference, *found.left}
        runs = {candidate_of(run): dataclasses.replace(run, tested=False) for run in every if run.seed == seed}
        runs = {name: run for name, run in runs.items() if name in racing}
        if left := training.follow(list(runs.values()), f"race, seed {seed}"):
            say(training.console, f"The time is up: {left}. Run it again to continue.")
            raise SystemExit(LEFT)
        if reason := runs[found.reference].latest().failure:
            raise StructuredInitError(f"nothing is raced, because the baseline cannot be trained: {reason}")
        values = {name: run.latest().metric(comparison.metric) for name, run in runs.items()}
        found.take(seed, {name: metric.factor * value for name, value in values.items()})
        if not found.left:
            break
    return found


def _decide(
    options: argparse.Namespace,
    further: Sequence[str],
    command: str,
    limit: TimeLimit,
    found: Race,
    comparison: Comparison,
    runs: Mapping[str, Run],
) -> str:
    """Compare the winner with the default on fresh seeds and the test split; return what one should use, in words."""
    winner = found.winner
    if winner is None:
        seeds = count(found.seeds[found.reference], "seed")
        return f"Keep your default: nothing raced looked better on the validation split ({seeds})."
    folder = Path(options.output)
    reference = _best_default(found, runs)
    files = {name: _write_candidate(folder, name, runs[name], comparison) for name in (reference, winner)}
    alone = "" if options.controls == "none" else ", and with itself scrambled where it has structure to scramble"
    print(f"The evidence: {winner} is compared with {reference} on fresh seeds and the test split{alone}.")
    inits = ",".join(f"{label_of(name)}={file}" for name, file in files.items())
    words = ["--seeds", f"{FRESH}-{FRESH + len(FIRST_LOOK) - 1}", "--margin", repr(options.margin)]
    words += ["--max-seeds", str(options.max_seeds), "--controls", options.controls, "--no-open"]
    run_comparison(_comparing(options, inits, label_of(reference), EVIDENCE, *words), further, command, limit)
    kind, text = verdict(folder, winner, reference)
    if kind == "better":
        comment = f"# Found by: {command}\n# {text}. The evidence: {EVIDENCE}/report.html\n"
        write_text(folder / "found.yaml", comment + files[winner].read_text(encoding="utf-8"))
        return f"Use {winner}: -c {folder / 'found.yaml'} ({text})."
    no_better = "is not shown to be better" if kind == "undecided" else "is no better"
    return f"Keep your default. The best of the {len(runs)} tried, {winner}, {no_better}: {text}."


def _prepare_race(
    options: argparse.Namespace, further: Sequence[str], command: str
) -> tuple[Comparison, dict[str, str]]:
    """Return the comparison that is raced, on the validation split, and what was left out of it."""
    if max(options.seeds) >= FRESH:
        raise StructuredInitError(f"--seeds: seeds from {FRESH} on are those of the evidence, which no race takes")
    reference, *_ = parse_arms(options.baseline)
    question_from(argparse.Namespace(**{**vars(options), "precision": None}), {})  # of the evidence, after the race
    among = [] if options.among == "auto" else split_outside_brackets(options.among)
    candidates = [each for each in among if each != options.baseline]  # the baseline is raced, named or not
    if among and not candidates:
        raise StructuredInitError(f"--among names nothing beside the baseline '{options.baseline}'")
    words = ["--seeds", ",".join(map(str, options.seeds)), "--learning-rates", options.learning_rates]
    if options.optimizers:
        words += ["--grid", f"{OPTIMIZERS}={options.optimizers}"]
    refuse_further(further, [name.replace("_", "-") for name in vars(options)])
    comparing = _comparing(options, ",".join([options.baseline, *candidates]), reference, RACE, *words)
    comparison = prepare(comparing, further, command, race=True)
    left_out: dict[str, str] = {}
    if options.among == "auto":
        comparison, left_out = automatic(comparison, ANYWHERE if options.launcher == "ray" else [])
    comparison = dataclasses.replace(comparison, metric=comparison.validation_metric)
    known = comparison.known()
    if known:
        comparison.grown(known)  # refuses another experiment
    return comparison, left_out


def _comparing(options: argparse.Namespace, inits: str, baseline: str, folder: str, *words: str) -> argparse.Namespace:
    """Return the options of a comparison inside of this search, whose runs are trained and judged as it says."""
    given = argparse.Namespace(**{name: getattr(options, name) for name in TRAINING})
    words = ("--inits", inits, "--baseline", baseline, "--output", str(Path(options.output) / folder), *words)
    experiment = [word for name in options.config for word in ("-c", name)]
    return compare_parser().parse_args([*experiment, *words], given)


def _best_default(found: Race, runs: Mapping[str, Run]) -> str:
    """Return the default that the winner is held against: at its own best, where optimizers or rates were raced.

    A winner that is the default under another optimizer or rate is held against the first.
    """
    arm = runs[found.reference].arm
    if found.winner is not None and runs[found.winner].arm == arm:
        return found.reference
    own = [name for name, run in runs.items() if run.arm == arm and name in found.gains]
    return max(own, key=lambda name: (found.seeds[name], found.gains[name]))


def _write_candidate(folder: Path, name: str, run: Run, comparison: Comparison) -> Path:
    """Write a candidate as a configuration of its own; return its file."""
    content = find_config(comparison.arms[run.arm].configuration).content()
    for key, value in run.point:
        content = merged(content, find_config(f"{key}/{value}").content())
    if run.learning_rate is not None:
        keys = reversed(comparison.rate_key.split("."))
        content = merged(content, reduce(lambda inner, key: {key: inner}, keys, run.learning_rate))
    file = folder / "candidates" / f"{label_of(name)}.yaml"
    write_text(file, yaml.safe_dump(content, sort_keys=False))
    return file


def _record(found: Race, comparison: Comparison) -> dict[str, Any]:
    metric = Metric(comparison.metric, comparison.mode)
    unit = f"{metric.unit} of {metric.words}" if metric.unit else metric.words
    return {
        "metric": metric.name,
        "mode": metric.mode,
        "unit": metric.unit,
        "gains_are": f"{unit} over {found.reference}, paired by seed, above 0 is better",
        "winner": found.winner,
        "in_the_race_to_the_end": found.left,
        "dropped": found.dropped,
        "gains": found.gains,
        "seeds": found.seeds,
    }


def verdict(folder: Path, winner: str, reference: str) -> tuple[str, str]:
    """Return what the evidence says of the winner against the default: the kind of decision, and in words."""
    (found,) = look(folder / EVIDENCE, read_manifest(folder / EVIDENCE))
    label = label_of(winner)
    gain = found.to_baseline(label)
    if gain is None or gain.interval is None:
        return "undecided", f"{winner} against {reference}: no seed has both, undecided"
    seeds = f"{gain.interval.samples} fresh seeds"
    text = f"{winner} against {reference}: {_size(gain, found)} on the test split, {seeds}, {gain.verdict}"
    scrambled = next((each for each in found.to_controls(label) if each.role == SCRAMBLED), None)
    if scrambled is None:
        return gain.verdict, f"{text}; not compared with itself scrambled"
    text += f"; against itself scrambled: {_size(scrambled, found)}, {decision_text(scrambled, found, 2)}"
    if scrambled.verdict != "better":
        text += " (it is not shown that its structure matters)"
    return gain.verdict, text


def _size(each: Contrast, found: PlaceResult) -> str:
    if each.interval is None:
        return "no seed has both"
    return f"{interval_text(each.interval, 2, signed=True)} {found.metric.unit}".rstrip()

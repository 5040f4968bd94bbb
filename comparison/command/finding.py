"""The initialization that a model should have: a race on validation, its winner then on fresh seeds and the test."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import signal
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from comparison.command.comparing import launcher_of, run_comparison
from comparison.command.options import compare_parser
from comparison.results.contrasts import Contrast
from comparison.results.controls import SCRAMBLED
from comparison.results.folder import Run, read_manifest, write_manifest
from comparison.results.headline import decision_text, look
from comparison.results.metric import Metric
from comparison.results.place import PlaceResult
from comparison.results.race import Race, race
from comparison.results.tables import count, interval_text
from comparison.run.arms import Arm, parse_arms
from comparison.run.candidates import automatic
from comparison.run.comparison import Comparison, locked
from comparison.run.deciding import FIRST_LOOK, question_from
from comparison.run.launch import Launcher, launch
from comparison.run.prepare import parse_rates, prepare, refuse_further
from comparison.run.resolve import ANYWHERE
from comparison.run.run import set_aside
from comparison.run.time_limit import LEFT, TimeLimit
from lightning_modules.cli.configurations import find_config, merged
from structured_init.presets import split_outside_brackets
from structured_init.util.errors import StructuredInitError, begin_writing
from structured_init.util.files import write_json, write_text

RACE = "race"  # folder of the runs that choose
OPTIMIZERS = "optim"  # folder of their configurations, and the key of a grid
Name = str  # of a candidate: an arm, under an optimizer or at a learning rate where these are raced
Candidate = tuple[Arm, str | None, float | None]  # arm, optimizer, learning rate
EVIDENCE = "evidence"  # folder of the runs that show
FRESH = 100  # the first seed of the evidence, which no race takes
# Options that a comparison inside of a search takes from it.
TRAINING = ("launcher", "threads", "parallel", "cpus_per_run", "gpus_per_run", "ray_address", "metric", "mode")


def run_find(options: argparse.Namespace, further: Sequence[str], command: str, limit: TimeLimit) -> None:
    """Race, look at the winner anew, and write what one should use."""
    console, folder = Console(highlight=False), Path(options.output)
    comparison, left_out = _prepared(options, further, command)
    names = _candidates(comparison, options.learning_rates)
    for remark in comparison.remarks:
        console.print(remark, markup=False, soft_wrap=True)
    others = f" {len(left_out)} others do not fit: find.json will say why." if left_out else ""
    console.print(f"{len(names)} candidates, the default among them.{others}", soft_wrap=True)
    launcher = launcher_of(options, limit)
    begin_writing(signal.SIGTERM)
    try:
        with locked(comparison.folder):
            known = comparison.known()
            manifest = comparison.manifest() if known is None else comparison.grown(known)
            write_manifest(comparison.folder, manifest)
            racing = _Racing(comparison, names, manifest["identity"], launcher, console, limit)
            found = race(list(names), next(iter(names)), options.seeds, racing.train, comparison.mode)
    finally:
        launcher.close()
    record = {"command": command, "candidates": list(names), "left_out": left_out, **_record(found, comparison)}
    tried = f"All {len(names)} candidates tried"
    if found.winner is None:
        said = f"nothing raced looked better on the validation split ({count(found.seeds[found.reference], 'seed')})"
        _end(folder, record, f"{tried}. Keep your default: {said}.", console)
        return
    reference, winner = _best_default(found, names), found.winner
    files = {name: _write_arm(folder, name, names[name], comparison) for name in (reference, winner)}
    alone = "" if options.controls == "none" else ", and with itself scrambled where it has structure to scramble"
    console.print(f"The evidence: {winner} is compared with {reference} on fresh seeds and the test split{alone}.")
    inits = ",".join(f"{label_of(name)}={folder / file}" for name, file in files.items())
    words = ["--seeds", f"{FRESH}-{FRESH + len(FIRST_LOOK) - 1}", "--margin", repr(options.margin)]
    words += ["--max-seeds", str(options.max_seeds), "--controls", options.controls, "--no-open"]
    run_comparison(_comparing(options, inits, label_of(reference), EVIDENCE, *words), further, command, limit)
    kind, text = verdict(folder, label_of(winner), winner, reference)
    if kind != "better":
        no_better = "is not shown to be better" if kind == "undecided" else "is no better"
        text = f"Keep your default. The best of the {len(names)} tried, {winner}, {no_better}: {text}"
        _end(folder, record, f"{tried}. {text}.", console)
        return
    content = (folder / files[winner]).read_text(encoding="utf-8")
    comment = f"# {tried}. Found by: {command}\n# {text}. The evidence: {EVIDENCE}/report.html\n"
    write_text(folder / "found.yaml", comment + content)
    _end(folder, record, f"{tried}. Use {winner}: -c {folder / 'found.yaml'} ({text}).", console)


def _candidates(comparison: Comparison, learning_rates: str) -> dict[Name, Candidate]:
    """Return what is raced by its name: every arm under every optimizer at every learning rate."""
    rates = parse_rates(learning_rates) or [None]
    comparison.arm_arguments(next(iter(comparison.arms.values())), rate=rates[0])  # of a module that may take none
    every = itertools.product(comparison.arms.items(), comparison.grid.get(OPTIMIZERS, [None]), rates)
    return {
        "@".join([label, *filter(None, [optimizer]), *([] if rate is None else [f"{rate:g}"])]): (arm, optimizer, rate)
        for (label, arm), optimizer, rate in every
    }


@dataclasses.dataclass
class _Racing:
    """Trains what a race asks for."""

    comparison: Comparison
    names: Mapping[Name, Candidate]
    identity: str
    launcher: Launcher
    console: Console
    limit: TimeLimit

    def train(self, names: Sequence[Name], seed: int) -> dict[Name, float]:
        """Return what candidates give with a seed, on the validation split; what was trained before is not again."""
        runs = {name: self._run(name, seed) for name in names}
        waiting = [run for run in runs.values() if not run.complete and not run.failure_file.is_file()]
        if waiting:
            self.console.print(f"Seed {seed}: {count(len(waiting), 'run')}.")
            for said in filter(None, map(set_aside, waiting)):
                self.console.print(said, markup=False, soft_wrap=True)
            launch(waiting, self.launcher, lambda run: None, self._ended, self.limit)
        left = [run for run in waiting if not run.complete and not run.failure_file.is_file()]
        if left:
            self.console.print(
                f"The time is up: {count(len(left), 'run')} left of this seed. Run it again to continue."
            )
            raise SystemExit(LEFT)
        reference = runs[names[0]]
        if reference.failure_file.is_file():
            reason = reference.latest().failure
            reference.failure_file.unlink()  # the same command tries it again
            raise StructuredInitError(f"nothing is raced, because the baseline cannot be trained: {reason}")
        return {name: self._value(run) for name, run in runs.items()}

    def _run(self, name: Name, seed: int) -> Run:
        arm, optimizer, rate = self.names[name]
        point = {} if optimizer is None else {OPTIMIZERS: optimizer}
        asked = {"arm": arm.label, "seed": seed, "point": point, "learning_rate": rate}
        (run,) = self.comparison.added_runs([asked], identity=self.identity)
        return dataclasses.replace(run, tested=False)

    def _value(self, run: Run) -> float:
        return Metric(self.comparison.metric).factor * run.latest().metric(self.comparison.metric)

    def _ended(self, run: Run | None = None, reason: str | None = None) -> None:
        if run is not None and reason:
            self.console.print(f"{run.name}: failed: {reason}", markup=False, soft_wrap=True)
        elif run is not None and run.complete:
            self.console.print(f"{run.name}: {self._value(run):.4g}", markup=False, soft_wrap=True)


def label_of(name: Name) -> str:
    """Return a candidate's name as an arm's label, which cannot have an ``@``."""
    return name.replace("@", "_at_")


def _prepared(options: argparse.Namespace, further: Sequence[str], command: str) -> tuple[Comparison, dict[str, str]]:
    """Return the comparison that is raced, on the validation split, and what was left out of it."""
    if max(options.seeds) >= FRESH:
        raise StructuredInitError(f"--seeds: seeds from {FRESH} on are those of the evidence, which no race takes")
    reference, *_ = parse_arms(options.baseline)
    question_from(argparse.Namespace(**{**vars(options), "precision": None}), {})  # of the evidence, after the race
    among = [] if options.among == "auto" else split_outside_brackets(options.among)
    candidates = [each for each in among if each != options.baseline]  # the baseline is raced, named or not
    if among and not candidates:
        raise StructuredInitError(f"--among names nothing beside the baseline '{options.baseline}'")
    inits = ",".join([options.baseline, *candidates])
    grid = ["--grid", f"{OPTIMIZERS}={options.optimizers}"] if options.optimizers else []
    comparing = _comparing(options, inits, reference, RACE, "--seeds", ",".join(map(str, options.seeds)), *grid)
    own, others = ([name.replace("_", "-") for name in vars(each)] for each in (options, comparing))
    refuse_further(further, own)  # what is misspelled, then what only compare has
    for argument in further:
        name = argument.removeprefix("--").partition("=")[0]
        if name != argument and name in others:
            raise StructuredInitError(f"'--{name}' is an option of compare that find does not have: see find --help")
    comparison = prepare(comparing, further, command, race=True)
    left_out: dict[str, str] = {}
    if options.among == "auto":
        comparison, left_out = automatic(comparison, ANYWHERE if options.launcher == "ray" else [])
    comparison = dataclasses.replace(comparison, metric=comparison.validation_metric)
    known = comparison.known()
    if known:
        comparison.grown(known)
    return comparison, left_out


def _comparing(options: argparse.Namespace, inits: str, baseline: str, folder: str, *words: str) -> argparse.Namespace:
    """Return the options of a comparison inside of this search, whose runs are trained and judged as it says."""
    given = argparse.Namespace(**{name: getattr(options, name) for name in TRAINING})
    words = ("--inits", inits, "--baseline", baseline, "--output", str(Path(options.output) / folder), *words)
    experiment = (word for name in options.config for word in ("-c", name))
    return compare_parser().parse_args([*experiment, *words], given)


def _best_default(found: Race, names: Mapping[Name, Candidate]) -> Name:
    """Return the default that the winner is held against: at its own best, where optimizers or rates were raced.

    A winner that is the default under another optimizer or rate is held against the first.
    """
    label = names[found.reference][0].label
    if found.winner is not None and names[found.winner][0].label == label:
        return found.reference
    own = [name for name, (arm, *_) in names.items() if arm.label == label and name in found.gains]
    return max(own, key=lambda name: (found.seeds[name], found.gains[name]))


def _write_arm(folder: Path, name: Name, candidate: Candidate, comparison: Comparison) -> str:
    """Write a candidate as a configuration of its own; return its file inside the folder."""
    arm, optimizer, rate = candidate
    content = find_config(arm.configuration).content()
    if optimizer is not None:
        content = merged(content, find_config(f"{OPTIMIZERS}/{optimizer}").content())
    if rate is not None:
        content = merged(content, reduce(lambda value, key: {key: value}, comparison.rate_key.split(".")[::-1], rate))
    file = f"candidates/{label_of(name)}.yaml"
    write_text(folder / file, yaml.safe_dump(content, sort_keys=False))
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
        "in_the_race_to_the_end": found.arms,
        "dropped": found.dropped,
        "gains": found.gains,
        "seeds": found.seeds,
    }


def _end(folder: Path, record: Mapping[str, Any], text: str, console: Console) -> None:
    write_json(folder / "find.json", {**record, "verdict": text})
    console.print(text, markup=False, soft_wrap=True)


def verdict(folder: Path, label: str, name: str, reference: str) -> tuple[str, str]:
    """Return what the evidence says of the winner against the default: the kind of decision, and in words."""
    manifest = read_manifest(folder / EVIDENCE)
    (found,) = look(folder / EVIDENCE, manifest)
    gain = found.to_baseline(label)
    if gain is None or gain.interval is None:
        return "undecided", f"{name} against {reference}: no seed has both, undecided"
    seeds = f"{gain.interval.samples} fresh seeds"
    text = f"{name} against {reference}: {_size(gain, found)} on the test split, {seeds}, {gain.verdict}"
    scrambled = next((each for each in found.to_controls(label) if each.role == SCRAMBLED), None)
    if scrambled is not None:
        text += f"; against itself scrambled: {_size(scrambled, found)}, {decision_text(scrambled, found, 2)}"
        text += "" if scrambled.verdict == "better" else " (it is not shown that its structure matters)"
    elif SCRAMBLED not in found.roles.get(label, {}).values():
        text += "; not compared with itself scrambled"
    return gain.verdict, text


def _size(each: Contrast, found: PlaceResult) -> str:
    assert each.interval is not None
    return f"{interval_text(each.interval, 2, signed=True)} {found.metric.unit}".rstrip()

"""The initialization that a model should have: a race on validation, its winner then on fresh seeds and the test.

The race takes seeds one by one, and after each the worse half of the arms leaves, until three are left. What wins is
only the best guess: whether it is better is shown by the evidence. Given the same values a race drops the same arms,
which makes it resumable.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from comparison.command.comparing import Training, begun, run_comparison, say
from comparison.command.options import compare_parser
from comparison.contrasts.contrasts import Contrast
from comparison.contrasts.controls import SCRAMBLED
from comparison.contrasts.place import PlaceResult, look
from comparison.intervals import Values, paired_values
from comparison.plan.arms import parse_arms
from comparison.plan.candidates import automatic
from comparison.plan.comparison import Comparison
from comparison.plan.experiment import ANYWHERE
from comparison.plan.further_seeds import FIRST_LOOK
from comparison.plan.prepare import prepare, refuse_further
from comparison.runs.folder import read_manifest
from comparison.runs.metric import Metric
from comparison.say.headline import decision_text
from comparison.tables import count
from comparison.train.time_limit import LEFT, TimeLimit
from lightning_modules.cli.configurations import find_config
from structured_init.presets import split_outside_brackets
from structured_init.util.errors import StructuredInitError
from structured_init.util.files import write_json, write_text

RACE = "race"  # folder of the runs that choose
EVIDENCE = "evidence"  # folder of the runs that show
FRESH = 100  # the first seed of the evidence, which no race takes
FEWEST_ARMS = 3  # beside the reference: these take all seeds
# Options that a comparison inside of a search takes from it.
TRAINING = ("launcher", "threads", "parallel", "cpus_per_run", "gpus_per_run", "ray_address", "metric", "mode")


def run_find(options: argparse.Namespace, further: Sequence[str], command: str, limit: TimeLimit) -> None:
    """Race, look at the winner anew, and write what one should use."""
    with begun(options, limit, lambda: _prepare_race(options, further, command)) as training:
        values = _race(training)
    comparison = training.comparison
    gains = gains_of(values, comparison.baseline, comparison.mode)
    winner = next((arm for arm, gain in gains.items() if gain > 0 and len(values[arm]) == len(comparison.seeds)), None)
    text = "Keep your default: nothing raced looked better on the validation split."
    if winner is not None:
        text = _show(winner, comparison, options, further, limit)
    text = f"All {len(comparison.arms)} candidates tried. {text}"
    record = {"command": command, "candidates": list(comparison.arms), "left_out": comparison.left_out}
    record |= {"metric": comparison.metric, "mode": comparison.mode, "winner": winner, "gains": gains}
    record |= {"seeds": {arm: len(of_arm) for arm, of_arm in values.items()}, "verdict": text}
    write_json(Path(options.output, "find.json"), record)
    say(training.console, text)


def _prepare_race(options: argparse.Namespace, further: Sequence[str], command: str) -> Comparison:
    """Return the comparison that is raced, on the validation split."""
    if max(options.seeds) >= FRESH:
        raise StructuredInitError(f"--seeds: seeds from {FRESH} on are those of the evidence, which no race takes")
    reference, *_ = parse_arms(options.baseline)
    among = [] if options.among == "auto" else split_outside_brackets(options.among)
    candidates = [each for each in among if each != options.baseline]  # the baseline is raced, named or not
    if among and not candidates:
        raise StructuredInitError(f"--among names nothing beside the baseline '{options.baseline}'")
    refuse_further(further, [name.replace("_", "-") for name in vars(options)])
    inits, seeds = ",".join([options.baseline, *candidates]), ",".join(map(str, options.seeds))
    comparing = _comparing(options, "--inits", inits, "--baseline", reference, "--seeds", seeds, folder=RACE)
    comparison = prepare(comparing, further, command, race=True)
    left_out: dict[str, str] = {}
    if options.among == "auto":
        comparison, left_out = automatic(comparison, ANYWHERE if options.launcher == "ray" else [])
    said = f"{len(comparison.arms)} candidates, the default among them; {len(left_out)} others do not fit."
    changes = {"left_out": left_out, "notices": [*comparison.notices, said]}
    return dataclasses.replace(comparison, metric=Metric(comparison.metric).on_validation, **changes)


def _race(training: Training) -> dict[str, Values]:
    """Train candidates seed by seed, those alone that are left; return their values, NaN where a run failed.

    What was trained before is not again.
    """
    comparison = training.comparison
    metric = Metric(comparison.metric, comparison.mode)
    values: dict[str, Values] = {arm: {} for arm in comparison.arms}
    racing = [*values]
    for seed in comparison.seeds:
        runs = [run for run in comparison.runs() if run.seed == seed and run.arm in racing]
        runs = [dataclasses.replace(run, tested=False) for run in runs]
        if left := training.follow(runs, f"race, seed {seed}"):
            say(training.console, f"The time is up: {left}. Run it again to continue.")
            raise SystemExit(LEFT)
        for run in runs:
            latest = run.latest()
            if run.arm == comparison.baseline and latest.failure:
                raise StructuredInitError(f"nothing is raced, as the baseline cannot be trained: {latest.failure}")
            values[run.arm][seed] = metric.factor * latest.metric(comparison.metric)
        of_left = {arm: values[arm] for arm in racing}
        left_now = best_half(gains_of(of_left, comparison.baseline, comparison.mode))
        if not left_now:
            break
        racing = [comparison.baseline, *left_now]
    return values


def gains_of(values: Mapping[str, Values], reference: str, mode: str) -> dict[str, float]:
    """Return the mean paired gain of each arm over the reference, the best first; above 0 an arm is better.

    It is infinite where the reference diverged in every seed; an arm that diverged or failed in any has none.
    """
    base = {seed: value for seed, value in values[reference].items() if math.isfinite(value)}
    sign = 1 if mode == "max" else -1
    gains = {}
    for arm, of_arm in values.items():
        if arm != reference and all(map(math.isfinite, of_arm.values())):
            differences = paired_values(of_arm, base).values() if base else [sign * math.inf]
            gains[arm] = sign * math.fsum(differences) / len(differences)
    return dict(sorted(gains.items(), key=lambda each: -each[1]))


def best_half(gains: Mapping[str, float]) -> list[str]:
    """Return the arms that go on, of gains with the best first."""
    kept = max(FEWEST_ARMS, math.ceil(len(gains) / 2))
    return [*gains][:kept]


def _show(
    winner: str, comparison: Comparison, options: argparse.Namespace, further: Sequence[str], limit: TimeLimit
) -> str:
    """Compare the winner with the default on fresh seeds and the test split; return what one should use, in words."""
    folder, reference, command = Path(options.output), comparison.baseline, comparison.command
    print(f"The evidence: {winner} is compared with {reference} on fresh seeds and the test split.")
    inits = ",".join(f"{arm}={comparison.arms[arm].configuration}" for arm in (reference, winner))
    words = ["--seeds", f"{FRESH}-{FRESH + len(FIRST_LOOK) - 1}", "--margin", repr(options.margin)]
    words += ["--max-seeds", str(options.max_seeds), "--controls", options.controls, "--no-open"]
    comparing = _comparing(options, "--inits", inits, "--baseline", reference, *words, folder=EVIDENCE)
    run_comparison(comparing, further, command, limit)
    is_better, text = verdict(folder / EVIDENCE, winner, reference)
    if not is_better:
        return f"Keep your default. The best of the {len(comparison.arms)} tried is not shown to be better: {text}."
    content = yaml.safe_dump(find_config(comparison.arms[winner].configuration).content(), sort_keys=False)
    comment = f"# Found by: {command}\n# {text}. The evidence: {EVIDENCE}/report.html\n"
    write_text(folder / "found.yaml", comment + content)
    return f"Use {winner}: -c {folder / 'found.yaml'} ({text})."


def _comparing(options: argparse.Namespace, *words: str, folder: str) -> argparse.Namespace:
    """Return the options of a comparison inside of this search, whose runs are trained and judged as it says."""
    given = argparse.Namespace(**{name: getattr(options, name) for name in TRAINING})
    experiment = [word for name in options.config for word in ("-c", name)]
    return compare_parser().parse_args([*experiment, "--output", str(Path(options.output) / folder), *words], given)


def verdict(folder: Path, winner: str, reference: str) -> tuple[bool, str]:
    """Return whether the evidence in a folder shows that the winner is better, and what it says of it in words."""
    (found,) = look(folder, read_manifest(folder))
    gain = found.to_baseline(winner)
    if gain is None:
        return False, f"{winner} against {reference}: no seed has both"
    turned = [each for each in found.to_controls(winner) if each.role == SCRAMBLED]
    beside = (
        f"against itself scrambled: {_decided(turned[0], found)}" if turned else "not compared with itself scrambled"
    )
    text = f"{winner} against {reference} on the test split: {_decided(gain, found)}; {beside}"
    return gain.verdict == "better", text


def _decided(each: Contrast, found: PlaceResult) -> str:
    assert each.interval is not None
    size = f"{each.interval.text(2, signed=True)}{found.metric.points}"
    return f"{size}, {count(each.pairs, 'fresh seed')}, {decision_text(each, found, 2)}"

"""From the command line to a checked comparison: every mistake shows before anything is started or written."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from callbacks import ElapsedTime, RepresentationCallback, WeightProductsCallback
from comparison.contrasts.controls import PEER, parse_controls, roles_of
from comparison.contrasts.place import check_success
from comparison.plan.arms import parse_arms
from comparison.plan.comparison import Comparison
from comparison.plan.experiment import (
    ANYWHERE,
    experiment_of,
    headline,
    lacks,
    metric_names,
    missing_callbacks,
    parse,
    values_of,
)
from comparison.plan.fitting import Planner
from comparison.plan.further_seeds import FIRST_LOOK, question_from
from comparison.plan.roles import (
    ENDINGS,
    ROLE_OF,
    SAME_POSITIONS,
    peer_of,
    roles_by_name,
    with_controls,
)
from comparison.runs.folder import Manifest
from comparison.runs.metric import BETTER, FLAGS, Metric, direction, mode_of
from comparison.tables import count
from lightning_modules.cli.lightning_cli import CLI
from structured_init.controls import is_structured
from structured_init.presets import split_outside_brackets
from structured_init.util.errors import StructuredInitError, nearest

# What a comparison sets for each run, and how a user says it instead.
OURS = {
    "init": ": give initializations with --inits",
    "seed_everything": ": give seeds with --seeds",
    "ckpt_path": "",
    "trainer.logger": "",
}
ENOUGH = 5  # seeds, below which a deviation is hardly known
FIXED = [0, 1, 2]  # seeds, where none are given and nothing is to be decided
SECTIONS = ("trainer", "model", "data", "attention", "filters", "weights_only", "print_config")
CALLBACKS = (ElapsedTime, RepresentationCallback, WeightProductsCallback)


def prepare(options: argparse.Namespace, further: Sequence[str], command: str, *, race: bool = False) -> Comparison:
    """Return the comparison that is asked for, all of it checked: initializations, points of the grid, the metric.

    Every initialization is planned on the network that it is for, of which nothing is kept. For a ``race`` there must
    be validation data as well.
    """
    refuse_further(further, [name.replace("_", "-") for name in vars(options)])
    deciding = options.precision is not None or options.margin is not None
    comparison = Comparison(
        folder=Path(options.output),
        experiment=options.config,
        arms=parse_arms(options.inits),
        seeds=options.seeds or (FIRST_LOOK if deciding else FIXED),
        arguments=list(further),
        grid=parse_grid(options.grid),
        learning_rates=options.learning_rates,
        threads=options.threads,
        command=command,
    )
    known = comparison.known()
    before = known or Manifest(arms={})
    values = values_of(parse([*comparison.configurations(), *further]))
    comparison = dataclasses.replace(
        comparison,
        question=question_from(options, before),
        configuration=experiment_of(values),
        added_callbacks=missing_callbacks(values, CALLBACKS),
        **_references(options, comparison, values, before),
    )
    planner = Planner(comparison, values, ANYWHERE if options.launcher == "ray" else ())
    comparison = dataclasses.replace(comparison, arms=planner.with_changes(comparison.arms))
    comparison.grown(known)  # refuses another experiment
    built = planner.build_points()
    _check_metric(comparison, built, headline(values)[0], race)
    notices = _notices(comparison, options, before, built)
    comparison, controls = _with_controls(comparison, planner, before, ENDINGS[options.controls])
    notices += [f"controls: {remark}" for remark in controls]
    return dataclasses.replace(comparison, notices=notices)


def _with_controls(
    comparison: Comparison, planner: Planner, before: Manifest, endings: Sequence[str]
) -> tuple[Comparison, list[str]]:
    """Return the comparison with the controls of its structured arms and with roles, and what is to be said of them."""
    arms = comparison.arms
    initializers = {label: planner.read(arm)[1] for label, arm in arms.items()}
    reports = {label: planner.read_and_plan(arm) for label, arm in arms.items()}
    plain = {label: of for label, of in reports.items() if not is_structured(initializers[label])}
    roles = roles_by_name({**before.arms, **arms})
    for label, controls in comparison.controls.items():
        roles[label] = controls | roles.get(label, {})
    for label, arm in arms.items():
        known = roles.get(label, {})
        if label not in plain and ROLE_OF[SAME_POSITIONS] not in known.values():
            peer = peer_of(initializers[label], functools.partial(planner.plan, arm), plain)
            roles[label] = {peer: PEER, **known} if peer else known
    found, remarks = with_controls(arms, initializers, roles, planner.read_and_plan, endings)
    roles = {label: controls for label, controls in roles.items() if controls}
    return dataclasses.replace(comparison, arms=planner.with_changes(found), controls=roles), remarks


def _notices(comparison: Comparison, options: argparse.Namespace, before: Manifest, built: CLI) -> list[str]:
    """Return what is to be said before anything is trained."""
    notices = []
    if said := getattr(built.datamodule, "remark", ""):
        notices.append(said)
    if not (options.metric or before.metric or hasattr(built.model, "headline")):
        taken = f"metric: {comparison.metric}, {BETTER[comparison.mode]}, as the module has no headline"
        notices.append(f"{taken}; --metric NAME chooses another that it logs")
    seeds = {*before.seeds, *comparison.seeds}
    if comparison.question is None and len(seeds) < ENOUGH and len(comparison.arms) > 1:
        notices.append(
            f"seeds: {count(len(seeds), 'seed')} can show large differences alone: run at least {ENOUGH}, as in "
            f"--seeds 0-{ENOUGH - 1}; who adds seeds after seeing the result asks with --margin"
        )
    return notices


def parse_grid(entries: Sequence[str]) -> dict[str, list[str]]:
    """Return the values by key of entries ``KEY=v1,v2``."""
    grid: dict[str, list[str]] = {}
    for entry in entries:
        key, _, text = entry.lstrip("-").partition("=")
        values = split_outside_brackets(text)
        if not values or not re.fullmatch(r"[\w.]+", key):
            raise StructuredInitError(f"cannot read --grid '{entry}': write key=value,value")
        if key in grid or len(set(values)) < len(values):
            raise StructuredInitError(f"--grid names '{key}' or one of its values twice")
        _refuse_ours(key)
        grid[key] = values
    return grid


def _references(
    options: argparse.Namespace, comparison: Comparison, values: Mapping[str, Any], before: Manifest
) -> dict[str, Any]:
    """Return metric, mode, baseline, controls and success: as given, else as the folder has them, else the task's."""
    arms = {**before.arms, **comparison.arms}
    name, mode = headline(values)
    metric = options.metric or before.metric or f"test/{name}"
    if metric == before.metric:
        mode = before.mode
    elif metric.partition("/")[2] != name:
        mode = direction(metric) or ""
    baseline = options.baseline or before.baseline or ("default" if "default" in arms else next(iter(arms)))
    if baseline not in arms:
        raise StructuredInitError(
            f"--baseline '{baseline}' is not among the initializations: {nearest(baseline, arms)}"
        )
    whole = dataclasses.replace(before, arms=arms, baseline=baseline)
    return {
        "metric": metric,
        "mode": options.mode or mode,
        "baseline": baseline,
        "controls": roles_of(whole, parse_controls(options.control)),
        "success": check_success(options.success, before.success, metric),
    }


def _check_metric(comparison: Comparison, built: CLI, usual: str, race: bool) -> None:
    """Refuse a metric that the task does not log, or on a split that it does not have; and rates that it cannot take.

    ``usual`` is the name of the task's own metric.
    """
    metric = comparison.metric
    split, _, name = metric.partition("/")
    if split not in ("val", "test") or not name:
        raise StructuredInitError(f"--metric must be 'test/…' or 'val/…', not '{metric}'")
    needed = {split: f"the metric is '{metric}'"}
    if race or comparison.learning_rates:
        chosen = "initializations are raced" if race else "learning rates are chosen"
        needed.setdefault("val", f"{chosen} on '{Metric(metric).on_validation}'")
    for part, why in needed.items():
        if lacking := lacks(built, part):
            other = f"give --metric val/{name}, or " if part == "test" else ""
            raise StructuredInitError(f"{lacking}, and {why}: {other}write one")
    logged = metric_names(built)
    if logged and metric not in logged and name != usual:
        final = {each for each in logged if not each.startswith("train/")}
        raise StructuredInitError(f"the task logs no '{metric}': {nearest(metric, final)}")
    if not comparison.mode:
        mode_of(metric)  # refuses a name that does not tell
    if comparison.learning_rates:
        first, *_ = comparison.arms.values()
        parse(comparison.arm_arguments(first, comparison.points()[0], comparison.learning_rates[0]))


def refuse_further(further: Sequence[str], options: Sequence[str]) -> None:
    """Refuse what a comparison sets itself, and what is no option of the command and no key of the experiment."""
    known = [*(f"--{option}" for option in options), *FLAGS.values()]
    for argument in further:
        key = argument.removeprefix("--").partition("=")[0].rstrip("+")
        if not argument.startswith("--"):  # a value, a negative number too
            continue
        _refuse_ours(key)
        if "." not in key and key not in SECTIONS:
            raise StructuredInitError(f"unknown option '--{key}': {nearest(f'--{key}', known)}")


def _refuse_ours(key: str) -> None:
    for name, way_out in OURS.items():
        if key == name or key.startswith(f"{name}."):
            raise StructuredInitError(f"'{key}' is what a comparison sets for each run{way_out}")

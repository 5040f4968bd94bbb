"""From the command line to a checked comparison: every mistake shows before anything is started or written."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from torch import nn

from callbacks import ElapsedTime, RepresentationCallback, WeightProductsCallback
from comparison.results.contrasts import Question
from comparison.results.controls import parse_controls, roles_of
from comparison.results.folder import Point, point_label
from comparison.results.metric import BETTER, FLAGS, direction, mode_of
from comparison.results.place import check_success
from comparison.results.power import ENOUGH
from comparison.results.tables import count
from comparison.run.arms import ENDINGS, Arm, controls_among, parse_arms, with_controls
from comparison.run.comparison import Comparison
from comparison.run.deciding import FIRST_LOOK, question_from
from comparison.run.resolve import (
    ANYWHERE,
    build,
    experiment_of,
    headline,
    initializer_of,
    lacks,
    metric_names,
    missing_callbacks,
    parse,
    values_of,
)
from lightning_modules.cli.lightning_cli import CLI
from lightning_modules.cli.show import leave_out_iterations, some_samples
from structured_init import Initializer, InitReport, Sharpened, initialize
from structured_init.presets import split_outside_brackets
from structured_init.util.errors import StructuredInitError, nearest

OURS = ("init", "seed_everything", "ckpt_path", "trainer.logger")  # what a comparison sets for each run
FIXED = [0, 1, 2]  # seeds, where none are given and nothing is to be decided
SECTIONS = ("trainer", "model", "data", "attention", "filters", "weights_only", "print_config")


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
        learning_rates=parse_rates(options.learning_rates),
        threads=options.threads,
        command=command,
    )
    known = comparison.known() or {}
    question = question_from(options, known)
    values = values_of(parse([*comparison.configurations(), *further]))
    comparison = dataclasses.replace(
        comparison,
        **_references(options, comparison, values, known),
        question=question,
        remarks=_remarks(comparison, options, question, known),
        configuration=experiment_of(values),
        added_callbacks=missing_callbacks(values, (ElapsedTime, RepresentationCallback, WeightProductsCallback)),
    )
    initializers: dict[str, Initializer] = {}
    for label, arm in comparison.arms.items():
        comparison, initializers[label] = with_arm(comparison, arm, values)
    if known:
        comparison.grown(known)  # refuses another experiment
    anywhere = ANYWHERE if options.launcher == "ray" else []
    places = _check_points(comparison, values, anywhere, race)
    built = next(iter(places.values()))
    if not comparison.mode:  # the task does log the metric
        mode_of(comparison.metric)
    if not (options.metric or known or hasattr(built.model, "headline")):
        others = sorted(name for name in metric_names(built) if name.startswith("test/"))
        taken = f"metric: {comparison.metric}, {BETTER[comparison.mode]}, as the module has no headline"
        chosen = f"{taken}; --metric NAME chooses another that it logs{f', such as {others[0]}' if others else ''}"
        comparison = dataclasses.replace(comparison, remarks=[chosen, *comparison.remarks])
    if said := getattr(built.datamodule, "remark", ""):
        comparison = dataclasses.replace(comparison, remarks=[said, *comparison.remarks])
    plans = Plans(comparison, places, anywhere)
    reports = {label: plans.plan(comparison, label, initializers[label]) for label in comparison.arms}
    endings = ENDINGS[options.controls]
    if endings:
        comparison = _controlled(comparison, values, initializers, reports, plans, endings)
    before = {label: Arm(label, arm["init"], arm["overrides"]) for label, arm in known.get("arms", {}).items()}
    controls = controls_among({**before, **comparison.arms}, reports)
    for arm, named in comparison.controls.items():
        controls[arm] = {**controls.get(arm, {}), **named}
    comparison = dataclasses.replace(comparison, controls=controls)
    return dataclasses.replace(comparison, remarks=[*comparison.remarks, *_kept(comparison, options, known)])


def _controlled(
    comparison: Comparison,
    values: Mapping[str, Any],
    initializers: Mapping[str, Initializer],
    reports: Mapping[str, list[InitReport | None]],
    plans: Plans,
    endings: Sequence[str],
) -> Comparison:
    """Return the comparison with the controls of its structured arms."""
    changes = dict(comparison.changes)

    def plan(arm: Arm) -> list[InitReport | None]:
        with_it, initializer = with_arm(comparison, arm, values)
        changes[arm.label] = with_it.changes[arm.label]
        return plans.plan(with_it, arm.label, initializer)

    given = set(chain.from_iterable(comparison.controls.values()))
    arms, remarks = with_controls(comparison.arms, initializers, reports, plan, endings, given)
    changes = {label: changes[label] for label in arms}
    remarks = [*comparison.remarks, *(f"controls: {remark}" for remark in remarks)]
    return dataclasses.replace(comparison, arms=arms, changes=changes, remarks=remarks)


def _remarks(
    comparison: Comparison, options: argparse.Namespace, question: Question | None, known: Mapping[str, Any]
) -> list[str]:
    """Return what is to be said before anything is trained: too few seeds, and a threshold that the folder keeps."""
    remarks = []
    seeds = {*known.get("seeds", ()), *comparison.seeds}
    if question is None and len(seeds) < ENOUGH and len({*known.get("arms", ()), *comparison.arms}) > 1:
        remarks.append(
            f"seeds: {count(len(seeds), 'seed')} can show large differences alone: run at least {ENOUGH}, as in "
            f"--seeds 0-{ENOUGH - 1}; seeds that are added after a look need --margin, whose intervals allow for it"
        )
    if options.success is None and known.get("success") is not None:
        remarks.append(f"success: --success {known['success']:g} is kept from before; --success none withdraws it")
    return remarks


def _kept(comparison: Comparison, options: argparse.Namespace, known: Mapping[str, Any]) -> Iterator[str]:
    """Say what a folder has beyond what this command asks for; nothing is dropped."""
    more = [
        f"{name} {', '.join(f'{each:g}' if isinstance(each, float) else str(each) for each in beyond)}"
        for name, key in (("initializations", "arms"), ("seeds", "seeds"), ("learning rates", "learning_rates"))
        if (beyond := [each for each in known.get(key, ()) if each not in getattr(comparison, key)])
    ]
    if more:
        yield f"kept from before: {'; '.join(more)}; another --output begins without them"


def parse_grid(entries: Sequence[str]) -> dict[str, list[str]]:
    """Return the values by key of entries ``KEY=v1,v2``."""
    grid: dict[str, list[str]] = {}
    for entry in entries:
        key, equals, text = entry.lstrip("-").partition("=")
        values = split_outside_brackets(text)
        if not equals or not values or not re.fullmatch(r"[\w.]+", key):
            raise StructuredInitError(f"cannot read --grid '{entry}': write key=value,value")
        if key in grid or len(set(values)) < len(values):
            raise StructuredInitError(f"--grid names '{key}' or one of its values twice")
        _refuse_ours(key)
        grid[key] = values
    return grid


def parse_rates(text: str) -> list[float]:
    """Return learning rates."""
    try:
        rates = [float(part) for part in text.split(",")] if text else []
    except ValueError:
        rates = [0.0]
    if twice := next((rate for rate in rates if rates.count(rate) > 1), None):
        raise StructuredInitError(f"the learning rates '{text}' name {twice:g} twice")
    if any(not 0 < rate < float("inf") for rate in rates):
        raise StructuredInitError(f"cannot read the learning rates '{text}': write positive numbers, as in 5e-4,1e-3")
    return rates


def _references(
    options: argparse.Namespace, comparison: Comparison, values: Mapping[str, Any], known: Mapping[str, Any]
) -> dict[str, Any]:
    """Return metric, mode, baseline, controls and success: as given, else as the folder has them, else the task's."""
    arms = {**known.get("arms", {}), **comparison.arms}
    name, mode = headline(dict(values))
    metric = options.metric or known.get("metric") or f"test/{name}"
    if metric == known.get("metric"):
        mode = known["mode"]
    elif metric.partition("/")[2] != name:
        mode = direction(metric) or ""
    baseline = options.baseline or known.get("baseline") or ("default" if "default" in arms else next(iter(arms)))
    if baseline not in arms:
        raise StructuredInitError(
            f"--baseline '{baseline}' is not among the initializations: {nearest(baseline, arms)}"
        )
    if options.control in ENDINGS and options.control not in arms:
        name = options.control
        raise StructuredInitError(f"--control names an arm, not '{name}': did you mean '--controls {name}'?")
    plan = {"arms": arms, "baseline": baseline, "controls": known.get("controls", {})}
    controls = roles_of(plan, parse_controls(options.control))
    success = check_success(options.success, known.get("success"), metric)
    references = {"metric": metric, "mode": options.mode or mode, "baseline": baseline, "controls": controls}
    return {**references, "success": success}


def with_arm(comparison: Comparison, arm: Arm, values: Mapping[str, Any]) -> tuple[Comparison, Initializer]:
    """Parse an arm; return the comparison with it and what it changes of the experiment, and its initializer."""
    with naming(arm.label):
        parsed = parse(comparison.arm_arguments(arm))
        initializer = initializer_of(parsed)
    given = values_of(parsed)
    changes = {
        key: given.get(key)
        for key in sorted(values.keys() | given.keys())
        if key.startswith("init.") or values.get(key) != given.get(key)
    }
    arms, every = {**comparison.arms, arm.label: arm}, {**comparison.changes, arm.label: changes}
    return dataclasses.replace(comparison, arms=arms, changes=every), initializer


def _check_points(
    comparison: Comparison, values: Mapping[str, Any], further: Sequence[str], race: bool
) -> dict[Point, CLI]:
    """Build the first arm at every point of the grid, parse it at every learning rate, and look for the metric.

    What was built is returned, at each point with a network of its own.
    """
    split, _, name = comparison.metric.partition("/")
    if split not in ("val", "test") or not name:
        split, _, name = comparison.metric.partition("_")
        log = f": log it as '{split}/{name}'" if split in ("val", "test") and name else ""
        raise StructuredInitError(f"--metric must be 'test/…' or 'val/…', not '{comparison.metric}'{log}")
    first, *_ = comparison.arms.values()
    place, *_ = comparison.points()
    for rate in comparison.learning_rates:
        parse(comparison.arm_arguments(first, place, rate))
    built = build([*comparison.arm_arguments(first, place), *further])
    if split == "test" and not getattr(built.datamodule, "has_test", True):
        raise StructuredInitError(
            f"the data has no split to test on, and the metric is '{comparison.metric}': give --metric val/{name}, or "
            "a folder test/ beside train/"
        )
    if lacking := lacks(built, split):
        other = f"give --metric val/{name}, or " if split == "test" else ""
        raise StructuredInitError(f"{lacking}, and the metric is '{comparison.metric}': {other}write one")
    if (race or comparison.learning_rates) and (lacking := lacks(built, "val")):
        chosen = "initializations are raced" if race else "learning rates are chosen"
        raise StructuredInitError(f"{lacking}, and {chosen} on '{comparison.validation_metric}': write one")
    found, networks = {place: built}, {_structure(built.model)}
    for point in comparison.points():
        cli = built if point == place else build([*comparison.arm_arguments(first, point), *further])
        if (network := _structure(cli.model)) not in networks:
            networks.add(network)
            found[point] = cli
        logged = metric_names(cli)
        if logged and comparison.metric not in logged and name != headline(dict(values))[0]:
            final = {each for each in logged if not each.startswith("train/")}
            raise StructuredInitError(f"the task logs no '{comparison.metric}': {nearest(comparison.metric, final)}")
    return found


def _structure(model: nn.Module) -> tuple[Any, ...]:
    """Return by what networks are told apart: their modules, as they print, and the shapes of their parameters."""
    return repr(model), *((name, parameter.shape) for name, parameter in model.named_parameters())


def refuse_further(further: Sequence[str], options: Sequence[str]) -> None:
    """Refuse what a comparison sets itself, and what is a misspelled option of the command."""
    known = [*(f"--{option}" for option in options), *FLAGS.values()]
    for argument in further:
        if not argument.startswith("-"):
            continue
        key = argument.lstrip("-").partition("=")[0]
        _refuse_ours(key.rstrip("+"))
        if "." not in key and key not in SECTIONS and difflib.get_close_matches(f"--{key}", known, n=1):
            near = nearest(f"--{key}", known)
            raise StructuredInitError(f"unknown option '--{key}': {near}")


def _refuse_ours(key: str) -> None:
    for name in OURS:
        if key == name or key.startswith(f"{name}."):
            way_out = {"init": "give initializations with --inits", "seed_everything": "give seeds with --seeds"}
            raise StructuredInitError(
                f"'{key}' is what a comparison sets for each run" + (f": {way_out[name]}" if name in way_out else "")
            )


class Plans:
    """Plans initializations on every network of the grid; nothing is written.

    A network is built once for all arms that have the same. It stays quick: solvers take no step, and not planned is
    what needs samples, or what a module builds later than in its constructor. Two samples are read only where attention
    is of no known class; without data here, such an arm is not planned either.
    """

    def __init__(self, comparison: Comparison, places: Mapping[Point, CLI], further: Sequence[str]) -> None:
        self.further = further
        self.data = {place: cli.datamodule for place, cli in places.items()}
        first = _network_of(comparison, next(iter(comparison.arms)))
        self.models = {(place, first): cli.model for place, cli in places.items()}

    def plan(self, comparison: Comparison, label: str, initializer: Initializer) -> list[InitReport | None]:
        """Return the report of a plan at each place with a network of its own; None where it takes samples."""
        return [self._plan(comparison, label, initializer, place) for place in self.data]

    def _plan(self, comparison: Comparison, label: str, initializer: Initializer, place: Point) -> InitReport | None:
        network = place, _network_of(comparison, label)
        with naming(label, point_label(place) if len(self.data) > 1 else ""):
            if network not in self.models:
                arguments = comparison.arm_arguments(comparison.arms[label], place)
                self.models[network] = build([*arguments, *self.further]).model
            model = self.models[network]
            inner = initializer.initializer if isinstance(initializer, Sharpened) else initializer  # two samples do
            if inner.needs_batch or next(model.parameters(), None) is None:
                return None
            leave_out_iterations(initializer)
            strict = bool(comparison.changes[label].get("init.strict"))
            lacking = False

            def samples() -> Any:
                nonlocal lacking
                lacking = True  # unless they are given
                given = some_samples(model, self.data[place])
                lacking = False
                return given

            given = {"seed": comparison.seeds[0], "batch": samples, "dry_run": True, "strict": strict}
            try:
                return initialize(model, initializer, **given)
            except StructuredInitError:
                if lacking and not strict:  # where the runs are, there may be data
                    return None
                raise


def _network_of(comparison: Comparison, label: str) -> str:
    """Return what an arm changes beside its initialization; arms that change the same have the same network."""
    changes = comparison.changes[label]
    return repr({key: value for key, value in changes.items() if not key.startswith("init.")})


@contextlib.contextmanager
def naming(label: str, place: str = "") -> Iterator[None]:
    """Say in an expected error which initialization it is about, and at which place of the grid."""
    try:
        yield
    except StructuredInitError as error:
        raise StructuredInitError(f"initialization '{label}'{place and f' (at {place})'}: {error}") from None

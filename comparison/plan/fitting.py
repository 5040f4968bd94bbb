"""Whether initializations fit the networks that they are compared on, found out before anything is trained."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from comparison.plan.arms import Arm
from comparison.plan.comparison import Comparison
from comparison.plan.experiment import build, initializer_of, parse, values_of
from comparison.plan.roles import Reports
from comparison.runs.folder import Point, point_label
from lightning_modules.cli.lightning_cli import CLI
from lightning_modules.cli.samples import some_samples
from structured_init import Initializer, InitReport, Sharpened, initialize
from structured_init.util.errors import StructuredInitError

Changes = Mapping[str, Any]  # what an arm changes of the experiment, by dotted name


class Planner:
    """Plans initializations on every network of the grid; nothing is written.

    A network is built once for all arms that have the same. It stays quick: solvers take no step, and not planned is
    what needs samples, or what a module builds later than in its constructor. Two samples are read only where attention
    is of no known class.
    """

    def __init__(self, comparison: Comparison, values: Mapping[str, Any], further: Sequence[str] = ()) -> None:
        self.comparison = comparison
        self.values = values  # of the experiment
        self.further = further  # words for what is built here
        self.built: dict[Point, CLI] = {}  # the first arm, at each point with a network of its own
        self.models: dict[tuple[Point, str], nn.Module] = {}
        self._read: dict[str, tuple[Changes, Initializer]] = {}  # parsing takes a while

    def build_points(self) -> CLI:
        """Build the first arm at every point of the grid; return the one at the first."""
        first = next(iter(self.comparison.arms.values()))
        networks = set()
        changes, _ = self.read(first)
        for point in self.comparison.points():
            cli = build([*self.comparison.arm_arguments(first, point), *self.further])
            shapes = [(name, parameter.shape) for name, parameter in cli.model.named_parameters()]
            network = repr((cli.model, shapes))
            if network not in networks:
                networks.add(network)
                self.built[point] = cli
                self.models[point, _network_of(changes)] = cli.model
        return next(iter(self.built.values()))

    def read(self, arm: Arm) -> tuple[Changes, Initializer]:
        """Return what an arm changes of the experiment, and its initializer."""
        if arm.label in self._read:
            return self._read[arm.label]
        with naming(arm.label):
            parsed = parse(self.comparison.arm_arguments(arm))
            initializer = initializer_of(parsed)
        given = values_of(parsed)
        changes = {}
        for key in sorted(self.values.keys() | given.keys()):
            if key.startswith("init.") or self.values.get(key) != given.get(key):
                changes[key] = given.get(key)
        self._read[arm.label] = changes, initializer
        return self._read[arm.label]

    def with_changes(self, arms: Mapping[str, Arm]) -> dict[str, Arm]:
        """Return the arms with what each changes of the experiment."""
        return {label: replace(arm, changes=self.read(arm)[0]) for label, arm in arms.items()}

    def plan(self, arm: Arm, initializer: Initializer) -> list[InitReport | None]:
        """Return the report of a plan, on an arm's network, at each point; None where it takes samples."""
        return [self._plan(arm, initializer, point) for point in self.built]

    def read_and_plan(self, arm: Arm) -> Reports:
        """Plan the initializer of an arm."""
        return self.plan(arm, self.read(arm)[1])

    def _plan(self, arm: Arm, initializer: Initializer, point: Point) -> InitReport | None:
        changes, _ = self.read(arm)
        with naming(arm.label, point_label(point) if len(self.built) > 1 else ""):
            model = self._model(arm, changes, point)
            inner = initializer.initializer if isinstance(initializer, Sharpened) else initializer  # two samples do
            if inner.needs_batch or next(model.parameters(), None) is None:
                return None
            for each in solvers(initializer):
                each.iterations = 0  # what it begins with fits where its solution does
            samples = partial(some_samples, model, self.built[point].datamodule)
            given = {"seed": self.comparison.seeds[0], "batch": samples, "strict": bool(changes.get("init.strict"))}
            return initialize(model, initializer, dry_run=True, **given)

    def _model(self, arm: Arm, changes: Changes, point: Point) -> nn.Module:
        key = point, _network_of(changes)
        if key not in self.models:
            self.models[key] = build([*self.comparison.arm_arguments(arm, point), *self.further]).model
        return self.models[key]


def _network_of(changes: Changes) -> str:
    """Return what an arm changes beside its initialization; arms that change the same have the same network."""
    return repr({key: value for key, value in changes.items() if not key.startswith("init.")})


@contextlib.contextmanager
def naming(label: str, place: str = "") -> Iterator[None]:
    """Say in an expected error which initialization it is about, and at which place of the grid."""
    try:
        yield
    except StructuredInitError as error:
        where = f" (at {place})" if place else ""
        raise StructuredInitError(f"initialization '{label}'{where}: {error}") from None


def solvers(part: Any) -> Iterator[Any]:
    """Yield what takes steps inside an initializer, itself maybe: what has a number of ``iterations``."""
    if isinstance(getattr(part, "iterations", None), int):
        yield part
    for each in vars(part).values() if hasattr(part, "__dict__") else ():
        for inner in each if isinstance(each, (list, tuple)) else [each]:
            if type(inner).__module__.startswith("structured_init."):
                yield from solvers(inner)

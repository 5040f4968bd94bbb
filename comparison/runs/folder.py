"""The folder of a comparison: its manifest, its runs and the learning rates chosen for them, read and written here.

``plan.json`` says what is compared. Beside the folder of each run, ``runs/<arm>/…/seed_<n>``, stand its settings,
written before it starts, and why it failed; inside it is its result, written when it is complete.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from filelock import FileLock

from comparison.runs.metric import is_loss
from structured_init.util.errors import StructuredInitError
from structured_init.util.files import read_text, write_json

MANIFEST, RATES = "plan.json", "learning_rates.json"  # in the folder of a comparison
SETTINGS, FAILURE = ".settings.json", ".failed.json"  # endings beside the folder of a run
RESULT = "result.json"  # in the folder of a run
MISSING = "missing.json"  # in it: what callbacks could not look at, by what and moment

# what stands in the file of a comparison
KINDS = {
    **dict.fromkeys(("arms", "controls", "grid", "configuration"), dict),
    **dict.fromkeys(("seeds", "learning_rates", "added"), list),
    **dict.fromkeys(("metric", "mode", "baseline", "command"), str),
    **{"threads": int, "question": (dict, type(None))},
}

Point = tuple[tuple[str, str], ...]  # the values of a grid at one place of it, in the order of the grid
Key = tuple[str, int, Point, float | None]  # what tells a run from every other: arm, seed, point, learning rate
# point → arm → ``chosen``, and the ``validation`` values it was chosen by
Choices = dict[str, dict[str, dict[str, Any]]]


@dataclass(frozen=True)
class Question:
    """What a comparison is to decide, in the unit in which its metric is shown.

    One of ``precision`` and ``margin`` is given.
    """

    precision: float | None = None  # half width of the interval at which the size of a difference is known well enough
    # differences below it are of no interest. An interval inside ``(-margin, margin)`` shows equivalence
    margin: float | None = None
    most: int = 40  # seeds that may be trained
    level: float = 0.95  # of the intervals of all looks together

    def of_family(self, size: int) -> Question:
        """Return the question for each of several differences, whose intervals then hold together (Bonferroni)."""
        return replace(self, level=1 - (1 - self.level) / max(size, 1))


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What is compared, as ``plan.json`` has it: initializations × seeds × a grid × learning rates."""

    arms: Mapping[str, Any]  # label → init, overrides, and the values by which it differs from the experiment: changes
    # of the runs; the same one gives every initialization the same data order, augmentation and dropout
    seeds: Sequence[int] = ()
    metric: str = ""  # what initializations are judged by, as logged
    mode: str = "max"  # "max" where more of it is better, "min" where less is
    baseline: str = ""  # the arm that differences refer to
    controls: dict[str, dict[str, str]] = field(default_factory=dict)  # arm → its controls, and what each is: a role
    # values by dotted key, or names of configurations by their folder; every combination is a point
    grid: Mapping[str, Sequence[str]] = field(default_factory=dict)
    learning_rates: Sequence[float] = ()  # to choose from, per initialization and point; empty leaves the experiment's
    # what a run has to reach of the metric to be counted, where results are all or nothing
    success: float | None = None
    question: Question | None = None  # what is to be decided by adding seeds; None where the seeds are fixed
    added: Sequence[Mapping[str, Any]] = ()  # runs that were added to decide it: arm, seed, point, learning_rate
    experiment: Sequence[str] = ()  # configurations, as given
    configuration: Mapping[str, Any] = field(default_factory=dict)  # every value of the experiment by dotted name
    arguments: Sequence[str] = ()  # further ones for every run
    threads: int = 1  # of every run
    command: str = ""  # how to repeat all this, a line for each command that added to it
    made_by: Sequence[str] = ()  # versions of this project
    version: int = 1  # of this format
    # Of runs that were made elsewhere: where they come from, what their steps are, and what was left out.
    source: str = ""
    counted: str = "optimizer steps"
    remarks: Sequence[str] = ()

    def plain(self) -> dict[str, Any]:
        """Return what the file says."""
        whole = asdict(self)
        return {each.name: whole[each.name] for each in fields(Manifest)}

    def points(self) -> list[Point]:
        """Return the places of the grid; one empty place where there is no grid."""
        return [tuple(zip(self.grid, map(str, values), strict=True)) for values in product(*self.grid.values())]

    def asked_runs(self) -> list[Key]:
        """Return every run that is asked for: those of the first look, and what was added to decide."""
        rates = [float(rate) for rate in self.learning_rates] or [None]
        asked = []
        for point, rate, seed, arm in product(self.points(), rates, self.seeds, self.arms):
            asked.append((arm, seed, point, rate))
        for run in self.added:
            asked.append((run["arm"], int(run["seed"]), tuple(run["point"].items()), run["learning_rate"]))
        return list(dict.fromkeys(asked))

    def asked_seeds(self) -> list[int]:
        """Return the seeds of the runs that are asked for."""
        return sorted({*self.seeds, *(int(run["seed"]) for run in self.added)})

    def missing_runs(self, runs: Iterable[Run]) -> list[Key]:
        """Return the runs that are asked for and that never started."""
        started = {run.key for run in runs}
        return [key for key in self.asked_runs() if key not in started]


@dataclass(frozen=True, eq=False)
class Run:
    """One training run: what it is, and what its folder showed when it was read."""

    arm: str  # label of its initialization
    seed: int
    point: Point
    learning_rate: float | None  # where the comparison gives one
    folder: Path  # where its metrics, report, maps and checkpoints go
    threads: int = 1
    arguments: Sequence[str] = ()  # the command line that makes it
    tested: bool = True  # whether the test split is to be read; not before a learning rate is chosen
    result: dict[str, Any] | None = field(default=None, repr=False)  # None while it is not complete
    failure: str | None = None  # why it stopped, in one line
    # What could not be looked at → moment → why, such as attention that has diverged.
    missing: dict[str, dict[str, str]] = field(default_factory=dict, repr=False)

    @property
    def key(self) -> Key:
        """What tells a run from every other of its comparison."""
        return self.arm, self.seed, self.point, self.learning_rate

    @property
    def name(self) -> str:
        """How messages name it."""
        rates = [] if self.learning_rate is None else [f"learning rate {self.learning_rate}"]
        return ", ".join([self.arm, *filter(None, [point_label(self.point)]), *rates, f"seed {self.seed}"])

    @property
    def environment(self) -> dict[str, Any]:
        """Hardware, threads and versions."""
        return (self.result or {}).get("environment") or {}

    def metric(self, name: str) -> float:
        """Return a final metric; NaN where the run did not log it, or it is no number."""
        return as_float((self.result or {}).get("metrics", {}).get(name))

    def diverged(self, metrics: Iterable[str]) -> bool:
        """Tell whether the complete run ended without a number in one of the metrics, or in any loss."""
        final = (self.result or {}).get("metrics", {})
        judged = {*metrics, *filter(is_loss, final)}
        return any(not math.isfinite(as_float(final[name])) for name in judged if name in final)

    def beside(self, ending: str) -> Path:
        """Return a file beside the folder: Lightning's loggers want theirs empty."""
        return self.folder.with_name(f"{self.folder.name}{ending}")

    @property
    def result_file(self) -> Path:
        """Exists once the run is complete."""
        return self.folder / RESULT

    @property
    def failure_file(self) -> Path:
        """Exists where the run stopped with an error."""
        return self.beside(FAILURE)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do, as the folder says now."""
        result = self.latest().result
        return result is not None and (not self.tested or result["tested"])

    def latest(self) -> Run:
        """Return the run as its folder shows it now."""
        result, failure, missing = self.result_file, self.failure_file, self.folder / MISSING
        return replace(
            self,
            result=read_json(result, "metrics") if result.is_file() else None,
            failure=read_json(failure).get("reason") if failure.is_file() and not result.is_file() else None,
            missing=read_json(missing) if missing.is_file() else {},
        )

    def write_settings(self) -> None:
        """Write what the run is, before it starts."""
        write_json(self.beside(SETTINGS), {**self._named(), "threads": self.threads, "arguments": list(self.arguments)})

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write what the run gave, when it is complete."""
        write_json(self.result_file, {**self._named(), **result})

    def write_failure(self, reason: str, trace: str | None = None) -> str:
        """Write why the run failed, where the disk has room for it, and return it."""
        with contextlib.suppress(StructuredInitError):
            write_json(self.failure_file, {"reason": reason, "traceback": trace})
        return reason

    def _named(self) -> dict[str, Any]:
        return {"arm": self.arm, "seed": self.seed, "point": dict(self.point), "learning_rate": self.learning_rate}


def read_run(settings_file: Path) -> Run:
    """Return the run whose settings stand in a file ``<folder>.settings.json``."""
    settings = read_json(settings_file, "arm", "seed")
    rate = settings.get("learning_rate")
    run = Run(
        arm=settings["arm"],
        seed=int(settings["seed"]),
        point=tuple((key, str(value)) for key, value in (settings.get("point") or {}).items()),
        learning_rate=None if rate is None else float(rate),
        folder=settings_file.with_name(settings_file.name.removesuffix(SETTINGS)),
        threads=settings.get("threads", 1),
        arguments=settings.get("arguments", ()),
    )
    return run.latest()


def find_runs(folder: str | os.PathLike[str]) -> list[Run]:
    """Return every run that was started, by its arm, point, learning rate and seed."""
    runs = map(read_run, Path(folder, "runs").glob(f"**/seed_*{SETTINGS}"))
    return sorted(runs, key=lambda run: (run.arm, run.point, run.learning_rate or 0.0, run.seed))


def is_published(folder: str | os.PathLike[str]) -> bool:
    """Tell whether a folder holds what a report wrote, without the runs it was written from."""
    return Path(folder, "results.csv").is_file() and not Path(folder, "runs").is_dir()


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """Return what a folder compares; refuse one that holds no comparison, or a damaged one."""
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise StructuredInitError(f"'{folder}' holds no comparison (there is no '{path.name}' in it)")
    found = read_json(path, "arms", "seeds", "baseline", "metric")
    known = {each.name: found[each.name] for each in fields(Manifest) if each.name in found}
    for key, value in known.items():
        if not isinstance(value, KINDS.get(key, object)):
            raise _damaged(path, f"its '{key}' is not what a comparison writes")
    if asked := known.get("question"):
        known["question"] = Question(**{each.name: asked[each.name] for each in fields(Question) if each.name in asked})
    return Manifest(**known)


@contextlib.contextmanager
def locked(folder: Path, name: str = ".lock") -> Iterator[None]:
    """Let one process at a time write what a folder says; others wait for that moment. ``name`` is the lock's file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / name).acquire()
    except OSError as error:
        raise StructuredInitError(f"cannot write to '{folder}': {error.strerror}") from None
    with lock:
        yield


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write what a folder compares."""
    write_json(folder / MANIFEST, manifest.plain())


def chosen_learning_rates(folder: str | os.PathLike[str]) -> Choices:
    """Return what was chosen, and the validation values it was chosen by; empty without a choice."""
    path = Path(folder) / RATES
    return read_json(path) if path.is_file() else {}


def write_choices(folder: Path, choices: Choices) -> None:
    """Write what was chosen; what the file says of other points and arms stays."""
    known = chosen_learning_rates(folder)
    merged = {point: {**known.get(point, {}), **choices.get(point, {})} for point in {**known, **choices}}
    write_json(folder / RATES, merged)


def is_chosen(run: Run, chosen: Choices, manifest: Manifest) -> bool:
    """Tell whether a run has the learning rate chosen for its arm, or none was to be chosen."""
    if run.learning_rate is None:
        return not manifest.learning_rates
    found = chosen.get(choice_name(run.point), {}).get(run.arm, {}).get("chosen")
    return found is not None and float(found) == run.learning_rate


def choice_name(point: Point) -> str:
    """Return how the file of choices names a point; one without a grid is named by nothing."""
    return ",".join(f"{key}={value}" for key, value in point)


def point_label(point: Point) -> str:
    """Return a place of the grid for reading: the last part of each key, and its value."""
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in point)


def read_json(path: Path, *required: str) -> dict[str, Any]:
    """Return the content of a JSON file; refuse one that cannot be read, is damaged, holds no keys or lacks one."""
    text = read_text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(content, dict):
        raise _damaged(path, f"it holds a {type(content).__name__}, not keys and values")
    for key in required:
        if key not in content:
            raise _damaged(path, f"it has no '{key}', so no comparison wrote it")
    return content


def _damaged(path: Path, why: str) -> StructuredInitError:
    return StructuredInitError(f"cannot read '{path}': {why}: bring back a copy")


def as_float(value: Any) -> float:
    """Return what JSON has for a metric: null is nan."""
    return float(value) if isinstance(value, (int, float)) else math.nan


def usual_baseline(arms: Iterable[str]) -> str | None:
    """Return the arm that is called default, else baseline, in any case of letters, small ones first."""
    known = {arm.lower(): arm for arm in sorted(arms)}
    return known.get("default") or known.get("baseline")

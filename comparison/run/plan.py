"""What is compared: the manifest of a comparison, and the runs it consists of."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from comparison.results.decisions import Question
from comparison.results.records import asked_runs
from comparison.results.run_record import read_json
from comparison.run.arms import Arm
from comparison.run.run import Run
from lightning_modules.cli.config_names import config_names
from structured_init.errors import StructuredInitError
from structured_init.files import write_json
from structured_init.made_by import made_by

VERSION = 1
LEARNING_RATE = "model.init_args.optimizer.init_args.lr"
ABSENT = "nothing"

Point = dict[str, str]


@dataclass(frozen=True)
class Comparison:
    """Initializations × seeds × the points of a grid × learning rates, everything else equal.

    Attributes:
        folder: of the comparison.
        experiment: configurations, as given.
        arms: the initializations by label.
        seeds: of the runs; the same one gives every initialization the same data order, augmentation and dropout.
        arguments: further ones for every run.
        grid: values by dotted key, or names of configurations by their folder; every combination is a point.
        learning_rates: to choose from, per initialization and point; empty leaves the experiment's.
        threads: of every run; part of its identity.
        metric: what initializations are judged by.
        mode: ``"max"`` or ``"min"``.
        baseline: label of the initialization that differences refer to.
        controls: initialization → its same-positions control, where the user names it.
        success: what a run has to reach of the metric to be counted, where results are all or nothing.
        configuration: every value of the experiment by dotted name.
        changes: the values by which each initialization differs from the experiment.
        question: what is to be decided by adding seeds; None where the seeds are fixed.
        added_callbacks: names of those that every run gets.
        command: how to repeat all this.
        remarks: what is to be said before it begins.
    """

    folder: Path
    experiment: Sequence[str]
    arms: Mapping[str, Arm]
    seeds: Sequence[int]
    arguments: Sequence[str] = ()
    grid: Mapping[str, Sequence[str]] = field(default_factory=dict)
    learning_rates: Sequence[float] = ()
    threads: int = 1
    metric: str = ""
    mode: str = ""
    baseline: str = ""
    controls: Mapping[str, str] = field(default_factory=dict)
    success: float | None = None
    configuration: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    question: Question | None = None
    added_callbacks: Sequence[str] = ()
    command: str = ""
    remarks: Sequence[str] = ()

    @property
    def manifest_file(self) -> Path:
        """Where the manifest is."""
        return self.folder / "comparison.json"

    @property
    def validation_metric(self) -> str:
        """The metric on the validation split, by which learning rates are chosen."""
        return "val/" + self.metric.partition("/")[2]

    def points(self) -> list[Point]:
        """Return every combination of the grid's values; one empty point without a grid."""
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]

    def runs(self, *, identity: str) -> list[Run]:
        """List the runs seed by seed, so that an unfinished comparison is paired as far as it got."""
        rates = self.learning_rates or [None]
        return [
            self._run(self.arms[arm], seed, point, rate, identity)
            for seed, point, arm, rate in itertools.product(self.seeds, self.points(), self.arms, rates)
        ]

    def added_runs(self, added: Iterable[Mapping[str, Any]], *, identity: str) -> list[Run]:
        """List runs that were added to the first look, of the arms that are compared here; they read the test split."""
        runs = (
            self._run(self.arms[run["arm"]], run["seed"], run["point"], run["learning_rate"], identity)
            for run in added
            if run["arm"] in self.arms
        )
        return [replace(run, tested=True) for run in runs]

    def configurations(self) -> list[str]:
        """Return the part of a run's command line that names the experiment, good from any folder."""
        paths = (str(Path(name).resolve()) if Path(name).is_file() else name for name in self.experiment)
        return [word for path in paths for word in ("-c", path)]

    def arm_arguments(self, arm: Arm, point: Mapping[str, str], rate: float | None = None) -> list[str]:
        """Return the command line of an arm at a point, without a seed and a place to write to."""
        values = point if rate is None else {**point, LEARNING_RATE: repr(rate)}
        folders = {name.partition("/")[0] for name in config_names()}
        layers = [word for key, value in values.items() if key in folders for word in ("-c", f"{key}/{value}")]
        given = (f"--{key}={value}" for key, value in values.items() if key not in folders)
        return [*self.configurations(), *layers, *arm.arguments(), *self.arguments, *given]

    def _run(self, arm: Arm, seed: int, point: Point, rate: float | None, identity: str) -> Run:
        parts = [arm.label, *([point_name(point)] if point else []), *([] if rate is None else [f"lr_{rate!r}"])]
        folder = self.folder.resolve().joinpath("runs", *parts, f"seed_{seed}")
        arguments = [
            "fit",
            *("--trainer.enable_progress_bar=false", "--attention.figures=false", "--filters.figures=false"),
            *self.arm_arguments(arm, point, rate),
            *(f"--trainer.callbacks+={name}" for name in self.added_callbacks),
            *(
                "--trainer.logger=comparison.run.run_log.RunLog",
                f"--trainer.logger.init_args.folder={folder}",
            ),
            f"--seed_everything={seed}",
        ]
        settings = {
            **{"arm": arm.label, "seed": seed, "point": point, "learning_rate": rate},
            **{"threads": self.threads, "identity": identity, "arguments": arguments},
        }
        return Run(folder, settings, tested=rate is None)

    # The manifest -----------------------------------------------------------------------------------------------------

    def manifest(self) -> dict[str, Any]:
        """Return what ``comparison.json`` says."""
        arms = {
            label: {"init": arm.init, "overrides": dict(arm.overrides), "changes": self.changes[label]}
            for label, arm in self.arms.items()
        }
        identity = json.dumps([self.configuration, list(self.arguments), self.threads], sort_keys=True)
        return {
            **{"version": VERSION, "experiment": list(self.experiment), "command": self.command},
            **{"arguments": list(self.arguments), "threads": self.threads},
            **{"metric": self.metric, "mode": self.mode, "baseline": self.baseline, "controls": dict(self.controls)},
            **({} if self.success is None else {"success": self.success}),
            **{"arms": arms, "seeds": list(self.seeds), "grid": {key: list(each) for key, each in self.grid.items()}},
            **{"learning_rates": list(self.learning_rates), "configuration": dict(self.configuration)},
            **({"question": self.question.plain(), "added": []} if self.question else {}),
            "identity": hashlib.sha256(identity.encode()).hexdigest(),
            "made_by": [made_by()],
        }

    def known(self) -> dict[str, Any] | None:
        """Return the manifest that the folder has, if any.

        Raises:
            StructuredInitError: the folder holds something else, or its manifest is damaged.
        """
        if self.manifest_file.is_file():
            return read_json(self.manifest_file)
        if self.folder.exists() and not self.folder.is_dir():
            raise StructuredInitError(f"cannot write to '{self.folder}': it is a file")
        strange = [path.name for path in self.folder.glob("*") if not path.name.startswith(".")]
        if strange:
            raise StructuredInitError(
                f"'{self.folder}' holds something else ('{sorted(strange)[0]}'): choose another --output"
            )
        return None

    def grown(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Return the folder's manifest with what this comparison adds to it.

        Raises:
            StructuredInitError: the folder holds another experiment; names the first difference.
        """
        ours = self.manifest()
        refuse_another(known, ours, self.folder)
        merged = {**ours, "identity": known["identity"], "configuration": known["configuration"]}
        merged["made_by"] = list(dict.fromkeys([*known.get("made_by", ["a version that did not say"]), made_by()]))
        merged["arms"] = {**known["arms"], **ours["arms"]}
        merged["seeds"] = sorted({*known["seeds"], *ours["seeds"]})
        merged["learning_rates"] = sorted({*known["learning_rates"], *ours["learning_rates"]})
        merged["grid"] = {key: list(dict.fromkeys([*known["grid"][key], *ours["grid"][key]])) for key in ours["grid"]}
        fewer = {key: ours[key] for key in ("seeds", "grid", "learning_rates")} | {"arms": list(ours["arms"])}
        if not merged["learning_rates"] and len(list(self.runs(identity=""))) < len(asked_runs(merged)):
            merged["asked_last"] = fewer  # so that a report tells apart what this command asks for
        if "added" in known or "added" in ours:
            merged["added"] = known.get("added", [])
        return merged

    def write(self, manifest: Mapping[str, Any]) -> None:
        """Write the manifest."""
        write_json(self.manifest_file, manifest)


def point_name(point: Mapping[str, str]) -> str:
    """Return a folder's name for a point; what a name cannot have is told apart by a digest."""
    plain = "-".join(f"{key.rpartition('.')[2]}_{value}" for key, value in point.items())
    name = re.sub(r"[^\w.+-]+", "_", plain)
    digest = hashlib.sha256(json.dumps(list(point.items())).encode()).hexdigest()[:6]
    return name if name == plain else f"{name[:80]}-{digest}"


def refuse_another(known: Mapping[str, Any], ours: Mapping[str, Any], folder: Path) -> None:
    """Refuse a folder whose runs would not be comparable with ours.

    Raises:
        StructuredInitError: names the first difference.
    """
    for what, then, now in _differences(known, ours):
        raise StructuredInitError(
            f"'{folder}' holds another comparison: {what} is {then} there, {now} here: choose another --output"
        )


def _differences(known: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    if known.get("version") != VERSION:
        yield "the version of its files", known.get("version"), VERSION
    if known["threads"] != ours["threads"]:
        yield "--threads", known["threads"], ours["threads"]
    yield from _unequal("", known["configuration"], ours["configuration"])
    for label in known["arms"].keys() & ours["arms"].keys():
        yield from _unequal(
            f"initialization '{label}': ", known["arms"][label]["changes"], ours["arms"][label]["changes"]
        )
    if list(known["grid"]) != list(ours["grid"]):
        yield "--grid", ", ".join(known["grid"]) or ABSENT, ", ".join(ours["grid"]) or ABSENT
    if bool(known["learning_rates"]) != bool(ours["learning_rates"]):
        yield "--learning-rates", known["learning_rates"] or ABSENT, ours["learning_rates"] or ABSENT


def _unequal(prefix: str, known: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield what differs among the arguments that both know: a newer version may have more, at their defaults."""
    for key in sorted(known.keys() & ours.keys()):
        if known[key] != ours[key]:
            yield prefix + key, known[key], ours[key]

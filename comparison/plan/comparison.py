"""What is compared, the runs it consists of, and the file that says so, which several commands may add to."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from comparison.contrasts.contrasts import Question
from comparison.contrasts.controls import Roles
from comparison.plan.arms import LONGEST, Arm
from comparison.runs.folder import MANIFEST, Manifest, Point, Run, points, read_manifest, write_manifest
from lightning_modules.cli.configurations import config_names
from structured_init.util.errors import StructuredInitError
from structured_init.util.files import made_by

VERSION = 1
# What the file of a folder says of a comparison as it is here.
KEPT = (
    *("experiment", "command", "arguments", "threads", "metric", "mode", "baseline", "controls"),
    *("seeds", "grid", "learning_rates", "configuration"),
)
# What a command needs of the file of a folder that it adds to.
KINDS = {"arms": dict, "seeds": list, "grid": dict, "learning_rates": list, "configuration": dict, "threads": int}


@dataclass(frozen=True)
class Comparison:
    """Initializations × seeds × the points of a grid × learning rates, everything else equal."""

    folder: Path  # of the comparison
    experiment: Sequence[str]  # configurations, as given
    arms: Mapping[str, Arm]  # the initializations by label
    # of the runs; the same one gives every initialization the same data order, augmentation and dropout
    seeds: Sequence[int]
    arguments: Sequence[str] = ()  # further ones for every run
    # values by dotted key, or names of configurations by their folder; every combination is a point
    grid: Mapping[str, Sequence[str]] = field(default_factory=dict)
    learning_rates: Sequence[float] = ()  # to choose from, per initialization and point; empty leaves the experiment's
    threads: int = 1  # of every run
    metric: str = ""  # what initializations are judged by
    mode: str = ""  # ``"max"`` or ``"min"``
    baseline: str = ""  # label of the initialization that differences refer to
    controls: Roles = field(default_factory=dict)  # initialization → its controls, and what each is
    # what a run has to reach of the metric to be counted, where results are all or nothing
    success: float | None = None
    configuration: Mapping[str, Any] = field(default_factory=dict)  # every value of the experiment by dotted name
    # the values by which each initialization differs from the experiment
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    question: Question | None = None  # what is to be decided by adding seeds; None where the seeds are fixed
    added_callbacks: Sequence[str] = ()  # names of those that every run gets
    command: str = ""  # how to repeat all this; of a folder a line for each command that added to it
    remarks: Sequence[str] = ()  # lines that are to be said before it begins

    @property
    def validation_metric(self) -> str:
        """The metric on the validation split, by which learning rates are chosen."""
        return "val/" + self.metric.partition("/")[2]

    @property
    def rate_key(self) -> str:
        """What a learning rate is given to: the module's own ``lr`` or ``learning_rate``, else its optimizer's."""
        known = {key.split(".")[1] for key in self.configuration if key.startswith("model.")}
        for name in ("lr", "learning_rate"):
            if name in known:
                return f"model.init_args.{name}"
        if known and "optimizer" not in known:
            name = str(self.configuration.get("model.class_path")).rpartition(".")[2]
            raise StructuredInitError(
                f"--learning-rates: {name} takes no learning rate: add 'lr: float = 1e-3' to its __init__, and use it "
                "in configure_optimizers"
            )
        return "model.init_args.optimizer.init_args.lr"

    def points(self) -> list[Point]:
        """Return every combination of the grid's values; one empty point without a grid."""
        return points(self.grid)

    def runs(self) -> list[Run]:
        """List the runs seed by seed, so that an unfinished comparison is paired as far as it got."""
        every = itertools.product(self.seeds, self.points(), self.arms, self.learning_rates or [None])
        return [self._run(arm, seed, point, rate) for seed, point, arm, rate in every]

    def added_runs(self, added: Iterable[Mapping[str, Any]]) -> list[Run]:
        """List runs that were added to the first look, of the arms that are compared here; they read the test split."""
        runs = []
        for each in added:
            if each["arm"] in self.arms:
                run = self._run(each["arm"], each["seed"], tuple(each["point"].items()), each["learning_rate"])
                runs.append(replace(run, tested=True))
        return runs

    def configurations(self) -> list[str]:
        """Return the part of a run's command line that names the experiment, good from any folder."""
        words = []
        for name in self.experiment:
            words += ["-c", str(Path(name).resolve()) if Path(name).is_file() else name]
        return words

    def arm_arguments(self, arm: Arm, point: Point = (), rate: float | None = None) -> list[str]:
        """Return the command line of an arm at a point, without a seed and a place to write to."""
        shipped = {name.partition("/")[0] for name in config_names()}
        layers, given = [], []
        for key, value in point:
            own = Path(key, f"{value}.yaml")
            if own.is_file():
                layers += ["-c", str(own.resolve())]
            elif key in shipped or Path(key).is_dir():
                layers += ["-c", f"{key}/{value}" if key in shipped else str(own)]
            else:
                given.append(f"--{key}={value}")
        if rate is not None:
            given.append(f"--{self.rate_key}={rate!r}")
        return [*self.configurations(), *layers, "-c", arm.configuration, *self.arguments, *given]

    def _run(self, arm: str, seed: int, point: Point, rate: float | None) -> Run:
        places = [point_name(point)] if point else []
        places += [] if rate is None else [f"lr_{rate!r}"]
        folder = self.folder.resolve().joinpath("runs", arm, *places, f"seed_{seed}")
        arguments = [
            "fit",
            *("--trainer.enable_progress_bar=false", "--filters.figures=false"),
            f"--attention.figures={str(seed == self.seeds[0]).lower()}",  # the report shows those of one seed
            *self.arm_arguments(self.arms[arm], point, rate),
            *(f"--trainer.callbacks+={name}" for name in self.added_callbacks),
            "--trainer.logger=comparison.train.run_log.RunLog",
            f"--trainer.logger.init_args.folder={folder}",
            f"--seed_everything={seed}",
        ]
        return Run(arm, seed, point, rate, folder, self.threads, arguments=arguments, tested=rate is None)

    def manifest(self) -> Manifest:
        """Return what ``comparison.json`` says."""
        manifest: Manifest = {"version": VERSION, "made_by": [made_by()], "arms": {}}
        for name in KEPT:
            manifest[name] = getattr(self, name)  # type: ignore[literal-required]
        for label, arm in self.arms.items():
            manifest["arms"][label] = {**asdict(arm), "changes": self.changes[label]}
            del manifest["arms"][label]["label"]
        if self.success is not None:
            manifest["success"] = self.success
        if self.question:
            manifest["question"], manifest["added"] = asdict(self.question), []
        return manifest

    def known(self) -> Manifest | None:
        """Return the manifest that the folder has, if any; refuse a folder that holds something else."""
        file = self.folder / MANIFEST
        if file.exists():
            known = read_manifest(self.folder)
            for key, kind in KINDS.items():
                if not isinstance(known.get(key), kind):
                    raise StructuredInitError(f"cannot read '{file}': its '{key}' is not what a comparison writes")
            return known
        if self.folder.exists() and not self.folder.is_dir():
            raise StructuredInitError(f"cannot write to '{self.folder}': it is a file")
        strange = sorted(path.name for path in self.folder.glob("*") if not path.name.startswith("."))
        if strange:
            raise StructuredInitError(f"'{self.folder}' holds something else ('{strange[0]}'): choose another --output")
        return None

    def grown(self, known: Manifest) -> Manifest:
        """Return the folder's manifest with what this comparison adds to it; refuse another experiment."""
        ours = self.manifest()
        then, now = _fixed(known), _fixed(ours)
        for what in now:
            if what in then and then[what] != now[what]:  # a newer version may have more arguments, at their defaults
                raise StructuredInitError(
                    f"'{self.folder}' holds another comparison: {what} is {then[what]} there, {now[what]} here: "
                    "choose another --output"
                )
        merged: Manifest = {**ours, "configuration": known["configuration"]}
        merged["made_by"] = _union(known.get("made_by", ["a version that did not say"]), ours["made_by"])
        merged["command"] = "\n".join(_union(known.get("command", "").splitlines(), self.command.splitlines()))
        merged["arms"] = {**known["arms"], **ours["arms"]}
        merged["seeds"] = sorted({*known["seeds"], *ours["seeds"]})
        merged["learning_rates"] = sorted({*known["learning_rates"], *ours["learning_rates"]})
        merged["grid"] = {key: _union(known["grid"][key], values) for key, values in ours["grid"].items()}
        if "added" in known or "added" in ours:
            merged["added"] = known.get("added", [])
        return merged

    def write(self) -> Manifest:
        """Write down what is compared, beside what the folder has already; return both."""
        with locked(self.folder):
            known = self.known()
            manifest = self.manifest() if known is None else self.grown(known)
            write_manifest(self.folder, manifest)
        return manifest


def point_name(point: Point) -> str:
    """Return a folder's name for a point; what a name cannot have is told apart by a digest."""
    plain = "-".join(f"{key.rpartition('.')[2]}_{value}" for key, value in point)
    name = re.sub(r"[^\w.+-]+", "_", plain)
    digest = hashlib.sha256(json.dumps(point).encode()).hexdigest()[:6]
    return name if name == plain and len(name) <= LONGEST else f"{name[:80]}-{digest}"


def _union(*parts: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(itertools.chain(*parts)))


def _fixed(manifest: Manifest) -> dict[str, Any]:
    """Return by name what all runs of a folder have in common, and what makes each arm: no command may change it."""
    fixed = {
        "the version of its files": manifest.get("version"),
        "--threads": manifest["threads"],
        "--grid": ", ".join(manifest["grid"]) or "nothing",
        "--learning-rates": "given" if manifest["learning_rates"] else "nothing",
        **manifest["configuration"],
    }
    for label, arm in manifest["arms"].items():
        for key, value in arm["changes"].items():
            fixed[f"initialization '{label}': {key}"] = value
    return fixed


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one command at a time write what a folder says of its comparison; others wait for that moment."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock").acquire()
    except OSError as error:
        raise StructuredInitError(f"cannot write to '{folder}': {error.strerror}") from None
    with lock:
        yield

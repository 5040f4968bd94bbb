"""What is compared, the runs it consists of, and the file that says so, which several commands may add to."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from comparison.plan.arms import LONGEST, Arm
from comparison.runs.folder import MANIFEST, Manifest, Point, Run, locked, read_manifest, write_manifest
from lightning_modules.cli.configurations import config_names
from structured_init.util.errors import StructuredInitError
from structured_init.util.files import made_by


@dataclass(frozen=True, kw_only=True)
class Comparison(Manifest):
    """What is compared, and the runs that it consists of."""

    arms: Mapping[str, Arm]
    folder: Path  # of the comparison
    added_callbacks: Sequence[str] = ()  # names of those that every run gets
    notices: Sequence[str] = ()  # lines that are to be said before it begins
    left_out: Mapping[str, str] = field(default_factory=dict)  # candidates that do not fit, and why

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

    def known(self) -> Manifest | None:
        """Return the manifest that the folder has, if any; refuse a folder that holds something else."""
        if (self.folder / MANIFEST).exists():
            known = read_manifest(self.folder)
            return replace(known, arms={label: Arm(**{"label": label, **arm}) for label, arm in known.arms.items()})
        if self.folder.exists() and not self.folder.is_dir():
            raise StructuredInitError(f"cannot write to '{self.folder}': it is a file")
        strange = sorted(path.name for path in self.folder.glob("*") if not path.name.startswith("."))
        if strange:
            raise StructuredInitError(f"'{self.folder}' holds something else ('{strange[0]}'): choose another --output")
        return None

    def grown(self, known: Manifest | None) -> Comparison:
        """Return this comparison with what its folder has already; refuse another experiment."""
        ours = replace(self, made_by=[made_by()])
        if known is None:
            return ours
        then, now = _fixed(known), _fixed(ours)
        for what in now:
            if what in then and then[what] != now[what]:  # a newer version may have more arguments, at their defaults
                raise StructuredInitError(
                    f"'{self.folder}' holds another comparison: {what} is {then[what]} there, {now[what]} here: "
                    "choose another --output"
                )
        return replace(
            ours,
            configuration=known.configuration,
            made_by=_union(known.made_by, ours.made_by),
            command="\n".join(_union(known.command.splitlines(), self.command.splitlines())),
            arms={**known.arms, **self.arms},
            seeds=sorted({*known.seeds, *self.seeds}),
            learning_rates=sorted({*known.learning_rates, *self.learning_rates}),
            grid={key: _union(known.grid[key], values) for key, values in self.grid.items()},
            added=known.added,
        )

    def write(self) -> Comparison:
        """Write down what is compared, beside what the folder has already; return both."""
        with locked(self.folder):
            whole = self.grown(self.known())
            write_manifest(self.folder, whole)
        return whole


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
        "the version of its files": manifest.version,
        "--threads": manifest.threads,
        "--grid": ", ".join(manifest.grid) or "nothing",
        "--learning-rates": "given" if manifest.learning_rates else "nothing",
        **manifest.configuration,
    }
    for label, arm in manifest.arms.items():
        for key, value in arm.changes.items():
            fixed[f"initialization '{label}': {key}"] = value
    return fixed

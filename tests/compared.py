"""What tests of comparisons share: effects of made-up values, what a report says, and what a run leaves on the disk."""

import dataclasses
import json
import math
from pathlib import Path

import pandas as pd
import torch

from comparison.contrasts.place import find_places
from comparison.plan.arms import parse_arms
from comparison.plan.comparison import Comparison
from comparison.plan.further_seeds import question_from
from comparison.plan.roles import ENDINGS, roles_by_name, with_controls
from comparison.runs.folder import Manifest
from comparison.say.data import read_report_data
from comparison.say.registry import PANELS, pieces
from comparison.say.writing import markdown
from comparison.train.run_log import read_rows
from structured_init import Default, Mimetic

PLACES = ("0.1", "0.5")


def found(values, metric="test/accuracy", mode="max", *, percent=False, diverged=(), **changes):
    """What was found at every place of a grid, of arm → final values, a list or by seed; the first arm is the baseline.

    Where arms have a list of values for each of ``PLACES``, these are a grid. What is no number, and the runs (arm,
    seed) of ``diverged``, have diverged.
    """
    given = {"arms": dict.fromkeys(values), "baseline": next(iter(values)), "metric": metric, "mode": mode, **changes}
    unit, of_places = 100 if percent else 1, {arm: {None: of_arm} for arm, of_arm in values.items()}
    first = next(iter(values.values()))
    if isinstance(first, list) and isinstance(first[0], list):
        given["grid"] = {"k": list(PLACES)}
        of_places = {arm: dict(zip(PLACES, of_arm, strict=True)) for arm, of_arm in values.items()}
    rows = [
        {"arm": arm, "seed": seed, "k": place, "chosen": True, "learning_rate": math.nan, metric: value / unit}
        | {"diverged": math.isnan(value) or (arm, seed) in diverged}
        for arm, places in of_places.items()
        for place, of_place in places.items()
        for seed, value in (of_place.items() if isinstance(of_place, dict) else enumerate(of_place))
    ]
    return find_places(pd.DataFrame(rows), Manifest(**given))


def report_parts(source, *panels, **options):
    """Data and sections of a report, of the panels that are named: a page with all figures takes seconds."""
    data = read_report_data(source, **options)
    shown = [(panel, pieces(panel, data)) for panel in PANELS if panel.name in panels]
    return data, [each for each in shown if each[1]]


def report_text(source, *panels, **options):
    """What a report says in Markdown."""
    return markdown(*report_parts(source, *panels, **options))


def one_run(folder, *arguments, **changes):
    """A run of ``sincos`` with seed 1, of the experiment in the present folder."""
    callbacks = ["ElapsedTime", "RepresentationCallback"]
    given = {"arguments": list(arguments), "added_callbacks": callbacks, **changes}
    known = {"folder": folder, "experiment": ["tiny.yaml"], "arms": parse_arms("sincos"), "seeds": [1]}
    (run,) = Comparison(**known, **given).runs()
    return run


class Followed:
    """What follows the runs that are launched: which have ended, and how."""

    def __init__(self):
        self.over, self.failed = [], {}

    def ended(self, run, reason):
        self.over.append(run)
        if reason:
            self.failed[run.name] = reason


class AtOnce:
    """A launcher that does one run at a time, at once and in this process; a test says how."""

    def __init__(self, *_):
        self._ended = []

    def free(self):
        return not self._ended

    def start(self, run):
        self._ended.append((run, self.do(run)))

    def do(self, run):
        """Do a run; return why it failed, None where it did not."""
        raise NotImplementedError

    def wait(self, seconds):
        ended, self._ended = self._ended, []
        return ended

    def close(self):
        pass


class MadeUp(AtOnce):
    """Runs are complete at once, with the accuracy in percent that ``value`` gives; of None they fail."""

    trained: list = []  # noqa: RUF012
    most: float = math.inf  # runs that it starts before it is interrupted

    @staticmethod
    def value(run):
        """Return the accuracy of a run; a test says how."""
        raise NotImplementedError

    def do(self, run):
        if len(MadeUp.trained) >= MadeUp.most:
            raise KeyboardInterrupt
        if (percent := MadeUp.value(run)) is None:
            return run.write_failure("it has no memory")
        MadeUp.trained.append((run.arm, run.seed, run.tested))
        splits = ("val", "test") if run.tested else ("val",)
        metrics = {f"{split}/accuracy": percent / 100 for split in splits}
        run.folder.mkdir(parents=True, exist_ok=True)
        run.write_settings()
        run.write_result({"metrics": metrics, "epochs": 1, "steps": 4, "seconds": 100.0, "tested": run.tested})
        return None


def prepared(options, further, command, race=False):
    """What ``prepare`` returns, without a look at the experiment, which takes a second."""
    arms = parse_arms(options.inits)
    initializers = {label: Mimetic() if label.startswith("mimetic") else Default() for label in arms}
    arms, _ = with_controls(arms, initializers, {}, lambda arm: [None], ENDINGS[options.controls])
    given = {"folder": Path(options.output), "experiment": ["tiny.yaml"], "seeds": options.seeds or [0, 1, 2, 3, 4]}
    comparison = Comparison(arms=arms, command=command, **given)
    references = {"metric": "test/accuracy", "mode": "max", "baseline": options.baseline or "default"}
    references |= {"controls": roles_by_name(arms)}
    references |= {"question": question_from(options, comparison.known() or Manifest(arms={}))}
    return dataclasses.replace(comparison, **references)


class Places:
    """A launcher of two places, in which a run takes a second of a clock that only it turns; some never end."""

    places = 2

    def __init__(self, endless=()):
        self.now, self.begun, self.running, self.most, self.endless = 0.0, [], [], 0, endless

    def free(self):
        return len(self.running) < self.places

    def start(self, run):
        self.begun.append(run)
        self.running.append(run)
        self.most = max(self.most, len(self.running))

    def wait(self, seconds):
        self.now += 1.0
        return [(self.running.pop(0), None)] if self.running[0] not in self.endless else []

    def time(self):
        return self.now


def lasting(folder):
    """What a run leaves in its folder, without the times and folders in it."""
    result = {k: v for k, v in json.loads((folder / "result.json").read_text()).items() if "seconds" not in k}
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in read_rows(folder / "metrics.csv")]
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    maps = {name: (folder / name).read_bytes() for name in files if name.endswith(".safetensors")}
    statistics = json.loads((folder / "attention" / "statistics.json").read_text())
    return {"result": result, "rows": rows, "files": files, "maps": maps, "statistics": statistics}


def assert_same(one, other):
    """Both runs have left the same, bit for bit."""
    for name, left in lasting(one.folder).items():
        assert left == lasting(other.folder)[name], name
    states = [torch.load(run.folder / "checkpoints" / "last.ckpt", weights_only=True) for run in (one, other)]
    for part in ("state_dict", "optimizer_states", "lr_schedulers"):
        torch.testing.assert_close(states[1][part], states[0][part], rtol=0, atol=0)

"""A comparison that ran out of time: it stops at the end of a validation, and goes on as if it had not."""

import argparse
import contextlib
import math
import os
import sys
import time
from pathlib import Path

import pytest
import torch
import training
from compared import AtOnce, Followed, Places, assert_same, one_run
from lightning.pytorch import Callback

from callbacks import ExactResume
from comparison.command import comparing
from comparison.plan.arms import parse_arms
from comparison.plan.comparison import Comparison
from comparison.train.launch import LocalLauncher, launch
from comparison.train.run import attempt, train
from comparison.train.time_limit import StopAtDeadline, Stopped, TimeLimit
from lightning_modules.cli import main
from structured_init.util.arguments import parse_duration

pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory")  # that of a resumed run is not empty

FAR = 1e12
SMALL = [
    *("--trainer.max_epochs=2", "--trainer.limit_train_batches=3", "--data.fraction=0.3", "--data.flip=true"),
    *("--trainer.limit_val_batches=2", "--trainer.limit_test_batches=1"),
]


class Clock(Callback):
    """Lets the time run out at a moment of a training, and counts the tests."""

    moment: str = ""
    steps: tuple | None = None  # at which; None: at each
    tests = 0

    def _look(self, trainer, moment):
        if moment == Clock.moment and (Clock.steps is None or trainer.global_step in Clock.steps):
            Here.deadline = 0.0
            for each in trainer.callbacks:
                if isinstance(each, StopAtDeadline):
                    each.deadline = 0.0

    def on_train_start(self, trainer, *_):
        self._look(trainer, "start")

    def on_before_optimizer_step(self, trainer, *_):
        self._look(trainer, "step")

    def on_validation_start(self, trainer, *_):
        self._look(trainer, "sanity" if trainer.sanity_checking else "validation")

    def on_train_end(self, trainer, *_):
        self._look(trainer, "end")

    def on_test_start(self, *_):
        Clock.tests += 1


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Let the command line find this file's callback by its name."""
    monkeypatch.setitem(sys.modules, "test_time_limit", sys.modules[__name__])
    Clock.moment, Clock.steps, Clock.tests = "", None, 0
    return Clock


def make_run(folder, *arguments, **changes):
    """A run of two epochs of three steps."""
    return one_run(folder, "--trainer.callbacks+=test_time_limit.Clock", *SMALL, *arguments, **changes)


@pytest.fixture
def a_run(folder):
    """A factory of such runs."""
    return lambda name, *arguments, **changes: make_run(folder / name, *arguments, **changes)


def go_on(run):
    """Train as the same command does later; give the step of the checkpoint."""
    train(run, FAR)
    return torch.load(run.folder / "checkpoints" / "last.ckpt", weights_only=True)["global_step"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "arguments", "steps"),
    [
        pytest.param("step", [], [3, 6, 6], id="validation each epoch"),
        pytest.param("step", ["--trainer.val_check_interval=2"], [2, 3, 5, 6, 6], id="validation inside the epoch"),
        pytest.param("step", ["--trainer.accumulate_grad_batches=2"], [2, 4, 4], id="accumulation"),
        pytest.param("step", ["--trainer.max_steps=5", "--trainer.max_epochs=-1"], [3, 5, 5], id="steps"),
        pytest.param("step", ["--trainer.limit_val_batches=0"], [3, 6, 6], id="no validation"),
        pytest.param("validation", [], [3, 6, 6], id="the validation that has begun is finished"),
        pytest.param("end", [], [6, 6], id="between training and test"),
    ],
)
def test_a_run_stopped_wherever_it_can_be_ends_like_one_that_was_left_alone(a_run, moment, arguments, steps):
    whole, stopped = a_run("whole", *arguments), a_run("stopped", *arguments)
    train(whole)
    Clock.moment, Clock.tests = moment, 0
    for step in steps[:-1]:
        assert go_on(stopped) == step
        assert not stopped.result_file.exists()
    Clock.moment = "" if moment in ("end", "start") else moment
    assert go_on(stopped) == steps[-1]
    assert Clock.tests == 1
    assert_same(whole, stopped)


# The command ---------------------------------------------------------------------------------------------------------


DURATIONS = {
    **{"55m": 3300, "9m": 540, "2h": 7200, "1h30m": 5400, "1d2h": 93600, "90s": 90},
    **{"5min": 300, "2 h": 7200, "1 h 30 min": 5400, "3 hours": 10800, "5 m": 300, "10 SEC": 10},
    **{"01:30:00": 5400, "26:00:01": 93601, "600": 600, "0.5": 0.5},
}


@pytest.mark.parametrize("text", DURATIONS)
def test_durations_are_read_as_they_are_written(text):
    assert parse_duration(text) == DURATIONS[text]


@pytest.mark.parametrize("text", ["", "0", "0m", "-5", "5 5", "2hx", "m", "30m1h", "1:30", "1:60:00", "nan", "inf"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="write 55m, 2h, 1h30m, 01:30:00 or a number of seconds"):
        parse_duration(text)


def test_time_is_kept_for_checkpoints_and_report():
    assert (TimeLimit(1000.0, 3600).deadline, TimeLimit(1000.0, 3600).end) == (4570, 4590)
    assert (TimeLimit(1000.0, 60).deadline, TimeLimit(1000.0, 60).end) == (1054, 1058)
    assert TimeLimit(1000.0).deadline == math.inf


def places_of(monkeypatch, endless=()):
    """Two places whose clock is the one by which runs are launched."""
    places = Places(endless)
    monkeypatch.setattr("comparison.train.launch.time", places)
    return places


def test_no_run_starts_after_the_deadline(a_run, monkeypatch):
    runs, followed = [a_run(str(number)) for number in range(5)], Followed()
    places = places_of(monkeypatch)
    launch(runs, places, followed, TimeLimit(0.0, 2.0))  # the deadline is at 1.8 s
    assert places.begun == runs[:3]  # in order, as places become free
    assert places.most == places.places
    assert followed.over == runs[:2]  # the third has not stopped in time: close ends it


def test_what_does_not_stop_is_not_waited_for(a_run, monkeypatch):
    runs = [a_run("endless")]
    places = places_of(monkeypatch, runs)
    launch(runs, places, Followed(), TimeLimit(0.0, 60.0))
    assert 58 <= places.now <= 59


class Here(AtOnce):
    """Trains in this process, as a worker does."""

    deadline = FAR

    def __init__(self, *given):
        super().__init__()
        Here.deadline = given[-1]

    def do(self, run):
        return attempt(run, Here.deadline)


@pytest.fixture
def compare(folder, monkeypatch):
    """Run ``structured-init compare``; give its exit code."""
    monkeypatch.setattr(comparing, "LocalLauncher", Here)

    def run(*arguments, output="out"):
        given = ["-c", "tiny.yaml", "--inits", "default", *SMALL, "--trainer.callbacks+=test_time_limit.Clock"]
        try:
            main(["compare", *given, "--output", output, *arguments])
        except SystemExit as stop:
            return stop.code
        return 0

    return run


def test_the_command_stops_in_time_and_goes_on(compare, folder, capsys, monkeypatch):
    reported = []
    monkeypatch.setattr(comparing, "_report", lambda *_: reported.append(True))
    Clock.moment, Clock.steps = "step", (1,)
    assert compare("--seeds", "0,1", "--time-limit", "55m") == 75
    said = capsys.readouterr().out
    assert "default, seed 0: stopped\ndefault, seed 1: stopped\n" in said
    assert "The time is up: 0 of 2 runs are complete, 2 left. Run it again to continue." in said.splitlines()[-1]
    assert "failed" not in said
    assert not list(folder.glob("out/runs/**/result.json"))
    assert not list(folder.glob("out/runs/**/*.failed.json"))
    assert reported == []  # of nothing
    Clock.moment = ""
    assert compare("--seeds", "0,1", "--time-limit", "01:00:00") == 0
    assert Clock.tests == 2
    assert [path.parent.name for path in sorted(folder.glob("out/runs/**/result.json"))] == ["seed_0", "seed_1"]
    assert reported == [True]


def two_processes(folder, arguments):
    """A run of the arguments."""
    given = {"folder": folder / "out", "experiment": ["tiny.yaml"], "arguments": arguments}
    (run,) = Comparison(arms=parse_arms("default"), seeds=[0], **given).runs()
    return run


@pytest.mark.slow
@pytest.mark.distributed
def test_all_processes_of_a_run_stop_together(a_run, folder, monkeypatch):
    (folder / "slow_rank.py").write_text(
        "from lightning.pytorch import Callback\nfrom comparison.train.time_limit import StopAtDeadline\n\n\n"
        "class SlowRank(Callback):\n"
        "    def on_before_optimizer_step(self, trainer, *_):\n"
        "        if trainer.global_step == 1 and trainer.global_rank == 1:\n"
        "            next(e for e in trainer.callbacks if isinstance(e, StopAtDeadline)).deadline = 0.0\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    arguments = [*SMALL, "--trainer.strategy=ddp", "--trainer.devices=2", "--trainer.callbacks+=slow_rank.SlowRank"]
    run = two_processes(folder, arguments)
    followed = Followed()
    for steps in (3, 6):
        launcher = LocalLauncher(1, threads=1, deadline=FAR)
        try:
            launch([run], launcher, followed)
        finally:
            launcher.close()
        state = torch.load(run.folder / "checkpoints" / "last.ckpt", weights_only=True)
        assert state["global_step"] == steps
    assert followed.failed == {}
    assert run.latest().result["steps"] == 6
    assert run.latest().result["metrics"].keys() >= {"val/accuracy", "test/accuracy"}
    assert "2 processes" in run.beside(".log").read_text()


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are found in /proc")
def test_no_process_of_a_run_outlives_one_that_was_killed(folder):
    def ranks():
        """The further processes of the run, by their command lines."""
        found = (each.parent for each in Path("/proc").glob("[0-9]*/cmdline"))
        with_words = lambda each: f"folder={folder}/out/".encode() in (each / "cmdline").read_bytes()  # noqa: E731
        alive = []
        for each in found:
            with contextlib.suppress(OSError):
                alive += [each.name] if with_words(each) else []
        return alive

    def wait_until(reached, seconds):
        end = time.monotonic() + seconds
        while not reached() and time.monotonic() < end:
            time.sleep(0.1)
        return reached()

    arguments = [*SMALL, "--trainer.strategy=ddp", "--trainer.devices=2", "--trainer.max_epochs=1000"]
    run = two_processes(folder, arguments)
    launcher = LocalLauncher(1, threads=1)
    try:
        launcher.start(run)
        assert wait_until(ranks, 120)
    finally:
        launcher.close()
    assert wait_until(lambda: not ranks(), 60)  # one may be importing still


def test_where_the_position_in_an_epoch_cannot_be_saved_a_run_stops_at_the_end_of_an_epoch(tmp_path):
    stop = StopAtDeadline(0.0)
    with pytest.raises(Stopped), pytest.warns(UserWarning, match="train loader has no state_dict"):
        training.fit(tmp_path, ExactResume(), stop, max_epochs=3, val_check_interval=1)  # its DataLoader shuffles
    (last,) = tmp_path.rglob("last.ckpt")
    assert torch.load(last, weights_only=True)["global_step"] == 2

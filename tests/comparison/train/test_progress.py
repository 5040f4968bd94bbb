"""What a comparison says while it runs."""

import io
import json

import pytest
from rich.console import Console

from comparison.plan.arms import parse_arms
from comparison.plan.comparison import Comparison
from comparison.train import progress as following_runs
from comparison.train.progress import Progress, duration, following
from structured_init import StructuredInitError


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test turns."""

    class Clock:
        now = 0.0

        def perf_counter(self):
            return Clock.now

    monkeypatch.setattr(following_runs, "time", Clock())
    return Clock


@pytest.fixture
def runs(tmp_path):
    asked = Comparison(tmp_path, ["tiny.yaml"], parse_arms("default,sincos"), [0, 1])
    return asked.runs(identity="")


@pytest.fixture
def manifest():
    return {"configuration": {"trainer.max_epochs": 10}, "metric": "test/accuracy"}


def at_epoch(run, epoch):
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / "metrics.csv").write_text(f"epoch,step,val/accuracy\n{epoch - 1},{10 * epoch},0.5\n")


def complete(run, value=0.5):
    run.folder.mkdir(parents=True, exist_ok=True)
    content = {"metrics": {"test/accuracy": value}, "seconds": 7.0, "tested": True}
    run.result_file.write_text(json.dumps(content))


def test_the_time_left_is_that_of_the_runs_so_far(runs, manifest, clock):
    console = Console(file=io.StringIO(), width=100)
    with following(console, manifest, runs, 1) as progress:
        progress.started(runs[0])
        assert progress.remaining() is None
        clock.now = 44.0
        complete(runs[0])
        progress.ended(runs[0], None)
        assert progress.remaining() == 3 * 44
        progress.started(runs[1])
        clock.now = 54.0
        assert progress.remaining() == 3 * 44 - 10
        complete(runs[1])
        progress.ended(runs[1], None)
        complete(runs[2])
        progress.ended(runs[2], None)  # another command has trained it
        assert progress.remaining() == (44 + 10) / 2
    assert "[1/4] default, seed 0: test/accuracy 0.5, 7 s; about 2 min left" in console.file.getvalue()


def test_the_picture_says_what_runs_and_what_waits(runs, manifest, clock):
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None, highlight=False)
    with following(console, manifest, runs, 1) as progress:
        progress.started(runs[0])
        at_epoch(runs[0], 3)
        clock.now = 6.0
        assert str(progress.picture()) == "  default, seed 0: epoch 3 of 10, 6 s\n  3 waiting"
        progress.ended(runs[0], "no luck")
        progress.started(runs[1])
        assert str(progress.picture()) == "  sincos, seed 0: starting, 0 s\n  2 waiting; about 18 s left"
    said = console.file.getvalue()
    assert "[1/4] default, seed 0: failed: no luck; about 18 s left" in said
    assert "  2 waiting" in said
    assert progress.failed == {"default, seed 0": "no luck"}


def test_a_metric_that_no_run_logs_ends_it_all_with_the_nearest_name(runs, manifest):
    complete(runs[0])
    progress = Progress(Console(file=io.StringIO()), {**manifest, "metric": "test/acc"}, runs, 1)
    with pytest.raises(StructuredInitError, match="the runs log no 'test/acc': did you mean 'test/accuracy'"):
        progress.ended(runs[0], None)


def test_times_are_for_reading():
    assert [duration(seconds) for seconds in (5.4, 59, 61, 7199, 7201, 90000)] == [
        *("5 s", "59 s", "61 s", "2 h 00 min", "2 h 00 min", "25 h 00 min"),
    ]

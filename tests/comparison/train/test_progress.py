"""What a comparison says while it runs."""

import io
import json
import re

import pytest
from rich.console import Console

from comparison.plan.arms import parse_arms
from comparison.plan.comparison import Comparison
from comparison.train import progress as following_runs
from comparison.train.progress import duration, following
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
    return asked.runs()


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
    complete(runs[0])
    with following(console, manifest, runs) as progress:
        for seconds, run in ((44.0, runs[1]), (50.0, runs[2])):  # of which another command has trained the second
            clock.now = seconds
            complete(run)
            progress.ended(run, None)
            assert progress.remaining() == {44.0: 2 * 44, 50.0: 50 / 2}[seconds]
    said = console.file.getvalue().splitlines()
    assert said[0] == "4 runs, 1 of them complete"
    assert said[1] == "[2/4] sincos, seed 0: test/accuracy 0.5, 7 s; about 88 s left"


def test_a_terminal_shows_the_epoch_of_what_runs(runs, manifest):
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None, highlight=False)
    with following(console, manifest, runs) as progress:
        progress.started(runs[0])
        at_epoch(runs[0], 3)
        progress.look()
        progress.bars.refresh()
        progress.ended(runs[0], "no luck")
    said = console.file.getvalue()
    assert re.search(r"  default, seed 0 .* 3/10", said)
    assert "[1/4] default, seed 0: failed: no luck; about" in said
    assert progress.failed == {"default, seed 0": "no luck"}


def test_a_metric_that_no_run_logs_ends_it_all_with_the_nearest_name(runs, manifest):
    complete(runs[0])
    refused = pytest.raises(StructuredInitError, match="the runs log no 'test/acc': did you mean 'test/accuracy'")
    with following(Console(file=io.StringIO()), {**manifest, "metric": "test/acc"}, runs) as progress, refused:
        progress.ended(runs[0], None)


def test_times_are_for_reading():
    assert [duration(seconds) for seconds in (5.4, 59, 61, 7199, 7201, 90000)] == [
        *("5 s", "59 s", "61 s", "2 h 00 min", "2 h 00 min", "25 h 00 min"),
    ]

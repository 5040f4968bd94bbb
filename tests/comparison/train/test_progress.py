"""What a comparison says while it runs."""

import io
import json

import pytest
from rich.console import Console

from comparison.plan.arms import parse_arms
from comparison.plan.comparison import Comparison
from comparison.train.progress import following
from structured_init import StructuredInitError


@pytest.fixture
def runs(tmp_path):
    given = {"folder": tmp_path, "experiment": ["tiny.yaml"], "arms": parse_arms("default,sincos")}
    return Comparison(seeds=[0, 1], **given).runs()


def complete(run, value=0.5):
    run.folder.mkdir(parents=True, exist_ok=True)
    content = {"metrics": {"test/accuracy": value}, "seconds": 7.0, "tested": True}
    run.result_file.write_text(json.dumps(content))


def test_each_run_that_ends_has_a_line_and_a_terminal_a_bar_of_all(runs):
    said = {}
    for in_terminal in (False, True):
        console = Console(file=io.StringIO(), width=100, force_terminal=in_terminal, color_system=None, highlight=False)
        complete(runs[0])
        with following(console, "test/accuracy", runs, "race") as progress:
            complete(runs[1])
            progress.ended(runs[1], None)
            progress.ended(runs[2], "no luck")
            progress.ended(runs[3], None)
            progress.bars.refresh()
        said[in_terminal] = console.file.getvalue()
        assert progress.failed == {runs[2].name: "no luck"}
        runs[1].result_file.unlink()
    assert said[False].splitlines() == [
        "race: 4 runs, 1 of them complete",
        "race [2/4] sincos, seed 0: test/accuracy 0.5, 7 s",
        "race [3/4] default, seed 1: failed: no luck",
        "sincos, seed 1: stopped",
    ]
    assert " 3/4 " in said[True]


def test_a_metric_that_no_run_logs_ends_it_all_with_the_nearest_name(runs):
    complete(runs[0])
    refused = pytest.raises(StructuredInitError, match="the runs log no 'test/acc': did you mean 'test/accuracy'")
    with following(Console(file=io.StringIO()), "test/acc", runs) as progress, refused:
        progress.ended(runs[0], None)

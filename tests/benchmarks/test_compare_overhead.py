"""benchmarks/compare_overhead.py: the single runs are those of the comparison, and what was timed is written."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import compare_overhead


def test_a_process_is_timed_and_one_that_fails_is_not():
    found = compare_overhead.timed(["-c", "sum(range(10**6))"])
    assert found["processor"] > 0
    assert found["clock"] > 0
    with pytest.raises(RuntimeError, match="ended with exit code 3"):
        compare_overhead.timed(["-c", "raise SystemExit(3)"])


def test_overhead_is_the_comparison_beside_the_sum_of_its_runs(tmp_path):
    single = [{"clock": 10.0, "processor": 8.0}, {"clock": 10.0, "processor": 12.0}]
    options = Namespace(output=tmp_path, epochs=2, note="")
    compare_overhead.write(options, {"clock": 25.0, "processor": 19.0}, single)
    page = (tmp_path / "compare_overhead.md").read_text(encoding="utf-8")
    assert "| clock | 20 | 10.0 | 25 | +25.0 % |" in page
    assert "| processor | 20 | 10.0 | 19 | -5.0 % |" in page


def test_both_sides_train_the_same_runs(tmp_path, monkeypatch):
    """Nothing is trained: what would be started is looked at."""
    started = []
    words = ["fit", "--seed_everything=0", "--trainer.logger.init_args.folder=there"]
    run = SimpleNamespace(settings={"arguments": words, "arm": "sincos"})
    plan = SimpleNamespace(runs=lambda identity: [run, run])
    monkeypatch.setattr(compare_overhead, "prepare", lambda *given: plan)
    monkeypatch.setattr(
        compare_overhead, "timed", lambda command: started.append(command) or {"clock": 1.0, "processor": 1.0}
    )
    monkeypatch.setattr(sys, "argv", ["x", "--epochs", "3", "--output", str(tmp_path / "out")])
    compare_overhead.main()
    (whole,) = [command for command in started if "compare" in command]
    assert whole[-3:] == ["--trainer.max_epochs", "3", "--no-open"]
    single = [command for command in started if "--one" in command]
    assert len(single) == 2
    for number, command in enumerate(single):
        folder = tmp_path / "out" / "single" / str(number)
        settings = json.loads(Path(command[command.index("--one") + 1]).read_text())
        assert settings["arguments"] == [*words[:2], f"--trainer.logger.init_args.folder={folder.resolve()}"]
        assert settings["arm"] == "sincos"

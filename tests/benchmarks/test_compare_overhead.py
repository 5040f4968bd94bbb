"""benchmarks/compare_overhead.py: the single runs are those of the comparison, and what was measured is written."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import compare_overhead


def test_the_seconds_of_a_command_are_those_of_all_its_processes(tmp_path):
    work = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'sum(range(10**7))']); sum(range(10**6))"
    file = tmp_path / "seconds.json"
    compare_overhead.call(["-c", compare_overhead.MEASURE, str(file), sys.executable, "-c", work])
    alone = tmp_path / "alone.json"
    compare_overhead.call(["-c", compare_overhead.MEASURE, str(alone), sys.executable, "-c", "sum(range(10**6))"])
    assert json.loads(file.read_text())["seconds"] > 1.5 * json.loads(alone.read_text())["seconds"] > 0


def test_a_command_that_fails_is_not_timed(tmp_path):
    command = [
        "-c",
        compare_overhead.MEASURE,
        str(tmp_path / "seconds.json"),
        sys.executable,
        "-c",
        "raise SystemExit(3)",
    ]
    with pytest.raises(subprocess.CalledProcessError):
        compare_overhead.call(command)


def test_overhead_is_the_comparison_beside_the_sum_of_its_runs(tmp_path):
    compare_overhead.write(Namespace(output=tmp_path, epochs=2, note="Quiet."), 25.0, [8.0, 12.0])
    page = (tmp_path / "compare_overhead.md").read_text(encoding="utf-8")
    assert "| seconds of the processor | 20 | 10.0 | 25 | 1.250 |" in page
    assert "Quiet." in page


def test_both_sides_train_the_same_runs(tmp_path, monkeypatch):
    """Nothing is trained: what would be started is looked at."""
    started = []

    def call(command):
        started.append(command)
        seconds = {"fit": 1.0, "test": 0.5} if "--one" in command else {"seconds": 4.0}
        file = command[command.index("--one") + 1] if "--one" in command else command[2]
        Path(file).with_suffix(".seconds.json" if "--one" in command else ".json").write_text(json.dumps(seconds))

    words = ["fit", "--seed_everything=0", "--trainer.logger.init_args.folder=there"]
    run = SimpleNamespace(settings={"arguments": words, "arm": "sincos"})
    plan = SimpleNamespace(runs=lambda identity: [run, run])
    monkeypatch.setattr(compare_overhead, "prepare", lambda *given: plan)
    monkeypatch.setattr(compare_overhead, "call", call)
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
    page = (tmp_path / "out" / "compare_overhead.md").read_text(encoding="utf-8")
    assert "| seconds of the processor | 3 | 1.5 | 4 | 1.333 |" in page

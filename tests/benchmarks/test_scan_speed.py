"""benchmarks/scan_speed.py: every arm runs, and nothing is timed that computes something else."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from benchmarks import scan_speed


def test_every_arm_is_timed_and_written_down(tmp_path, monkeypatch, capsys):
    pytest.importorskip("mambapy")
    monkeypatch.setattr(scan_speed, "SHAPES", ((8, 2),))
    monkeypatch.setattr(scan_speed, "CHANNELS", 16)
    monkeypatch.setattr(scan_speed, "keep_memory", lambda: None)
    monkeypatch.setattr(sys, "argv", ["scan_speed", "--batch", "1", "--rounds", "1", "--output", str(tmp_path)])
    scan_speed.main()
    rows = json.loads((tmp_path / "scan_speed.json").read_text(encoding="utf-8"))["rows"]
    assert [(row["what"], row["kind"]) for row in rows] == [
        (what, kind) for what in ("scan", "model") for kind in ("mamba", "mamba2")
    ]
    for row in rows:
        assert set(row["seconds"]) == set(scan_speed.ARMS[row["kind"]])
        assert all(len(rounds) == 1 for rounds in row["seconds"].values())
        assert row["worst"] is None or 0 < row["worst"] < 1e-5
    assert len((tmp_path / "scan_speed.md").read_text(encoding="utf-8").splitlines()) == 2 + len(rows)
    assert "| scan | mamba | 8 | 2 |" in capsys.readouterr().out


@pytest.mark.parametrize("kind", scan_speed.ARMS)
def test_all_arms_of_a_model_compute_the_same_gradients(kind):
    pytest.importorskip("mambapy")
    arguments = scan_speed.inputs(kind, tokens=11, states=3, batch=2)
    wanted = scan_speed.results(scan_speed.recurrence(kind), arguments)
    for scan in scan_speed.scans(kind).values():
        for ours, theirs in zip(scan_speed.results(scan, arguments), wanted, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_scan_that_differs_stops_the_benchmark(monkeypatch):
    monkeypatch.setattr(scan_speed, "selective_scan", lambda *args: 1.01 * scan_speed.sequential_scan(*args))
    with pytest.raises(SystemExit, match=r"mamba at 8 tokens: ours differs from the recurrence by 1\.0e-02"):
        scan_speed.difference("mamba", 8, 2)

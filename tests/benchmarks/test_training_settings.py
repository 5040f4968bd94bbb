"""benchmarks/training_settings.py: every setting trains the same network, and one that cannot run is named."""

from __future__ import annotations

import json

import pytest

from benchmarks import training_settings

EAGER = [name for name, flags in training_settings.SETTINGS.items() if not flags[-1]]


def test_every_setting_begins_with_the_same_loss(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(training_settings, "NETWORKS", {"cpu": {"convmixer_8_1_k3_p4": 2}})
    monkeypatch.setattr(training_settings, "keep_memory", lambda: None)
    monkeypatch.setattr(
        "sys.argv", ["x", "--rounds", "2", "--threads", "1", "--output", str(tmp_path), "--settings", *EAGER]
    )
    training_settings.main()
    (row,) = json.loads((tmp_path / "training_settings.json").read_text(encoding="utf-8"))["rows"]
    assert list(row["seconds"]) == EAGER
    assert all(loss == pytest.approx(row["first_loss"]["float32"], abs=0.05) for loss in row["first_loss"].values())
    assert not row["failed"]
    assert "| convmixer_8_1_k3_p4 | 2 | bfloat16, fused |" in capsys.readouterr().out


def test_a_setting_that_cannot_run_is_named(monkeypatch):
    def trainer(network, setting, batch, device):
        def step():
            if setting == "compile":
                raise RuntimeError("no compiler\nand more")
            return 1.0

        return step

    monkeypatch.setattr(training_settings, "trainer", trainer)
    row = training_settings.measure("convmixer_8_1_k3_p4", 2, "cpu", 2, ["float32", "compile"])
    assert row["failed"] == {"compile": "RuntimeError: no compiler"}
    assert list(row["seconds"]) == ["float32"]
    record = {"device": "cpu", "threads": 1, "rounds": 2, "surroundings": {}, "rows": [row]}
    assert "| compile | not run | RuntimeError: no compiler |" in training_settings.table(record)

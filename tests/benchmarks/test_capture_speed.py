"""benchmarks/capture_speed.py: what it times is captured, and it writes what it measured."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import capture_speed
from lightning_modules.networks import create_network

SIZES = {"embed_dim": 16, "depth": 2, "num_heads": 2, "patch_size": 8}


def small():
    return create_network("vit_tiny_patch2_32", **SIZES).eval(), torch.rand(2, 3, 32, 32)


@pytest.mark.filterwarnings("ignore")  # Lightning's hints on loaders
def test_the_results_are_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(capture_speed, "MODELS", {"small": small})
    monkeypatch.setattr(capture_speed, "SIZES", SIZES)
    monkeypatch.setattr(capture_speed, "STEPS", 10)
    monkeypatch.setattr(capture_speed, "keep_memory", lambda: None)
    monkeypatch.setattr(capture_speed, "_peak", lambda name, capture: 7.0 if capture else 3.0)
    monkeypatch.setattr("sys.argv", ["capture_speed", "--repeats", "2", "--output", str(tmp_path)])
    capture_speed.main()
    record = json.loads((tmp_path / "capture_speed.json").read_text(encoding="utf-8"))
    row = record["small"]
    assert row["maps_megabytes"] == 2 * 2 * 2 * 16 * 16 * 4 / 2**20  # layers, samples, heads, tokens, float32
    assert row["peak_megabytes"] == 4.0
    assert all(len(times) == 2 for times in record["training"].values())
    assert (tmp_path / "capture_speed.md").read_text(encoding="utf-8").strip() in capsys.readouterr().out

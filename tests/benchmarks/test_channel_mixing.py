"""benchmarks/channel_mixing.py: the bound is met on drawn images, and the page says it."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from benchmarks import channel_mixing


@pytest.fixture
def small(monkeypatch):
    """One case on few drawn images."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(64, 3, 32, 32, dtype=torch.float64, generator=generator)
    monkeypatch.setattr(channel_mixing, "images", lambda data, count, mean, std: drawn[:count])
    monkeypatch.setattr(channel_mixing, "PIXELS", 1024)
    monkeypatch.setattr(channel_mixing, "CASES", ((1, 3),))
    monkeypatch.setattr(channel_mixing, "SHARES", (0.5, 1.0))
    activated = channel_mixing.activated
    monkeypatch.setattr(channel_mixing, "activated", lambda data, patch, size, seeds: activated(data, 1, size, seeds))


def test_as_many_channels_as_the_bound_reach_a_target_and_one_fewer_does_not(small):
    found = channel_mixing.case("", 1, 3, range(1))
    assert (found["rank"], found["needed"]) == (4, 36)  # three colours and the bias
    assert found["residuals"]["random"][36][0] < 1e-9
    assert found["residuals"]["random"][35][0] > 1e-3
    assert found["residuals"]["box, one for all"][36][0] > 0.1


def test_the_page_and_the_picture_are_written(small, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["channel_mixing", "--seeds", "1", "--output", str(tmp_path)])
    channel_mixing.main()
    record = json.loads((tmp_path / "channel_mixing.json").read_text(encoding="utf-8"))
    assert set(record["residuals"]) == {"patch 1, filter 3"}
    page = (tmp_path / "channel_mixing.md").read_text(encoding="utf-8")
    assert "patch 1, filter 3: k = 4, k·f² = 36" in page
    assert "![residual over D](channel_mixing.png)" in page
    assert (tmp_path / "channel_mixing.png").stat().st_size > 1000

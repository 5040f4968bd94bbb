"""benchmarks/floor.py counts what it says."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import floor
from benchmarks.floor import Traffic, extrapolated
from lightning_modules.networks import create_network


def test_traffic_is_what_operators_read_and_write_and_views_are_free():
    left, right = torch.rand(4, 8), torch.rand(8, 2)
    with Traffic() as traffic:
        left.T.reshape(8, 4)
        assert traffic.all == 0
        product = left @ right
        assert traffic.products == traffic.all == 4 * (32 + 16 + 8)
        product.relu()
    assert traffic.all - traffic.products == 4 * (8 + 8)


def test_counts_are_extrapolated_along_a_line():
    counts = [{"flops": 10.0 + 3 * size} for size in floor.SMALL]
    assert extrapolated(counts, 512) == {"flops": pytest.approx(10.0 + 3 * 512)}


def test_the_extrapolated_work_is_the_counted_work():
    low, high = (floor.step(size) for size in floor.SMALL)
    network = create_network(floor.NETWORK)
    with FlopCounterMode(display=False) as work:
        network(torch.rand(1, 3, 32, 32))
    assert high["flops"] / low["flops"] == pytest.approx(2, rel=0.01)
    assert low["flops"] / floor.SMALL[0] == pytest.approx(3 * work.get_total_flops(), rel=0.05)  # backward is twice
    assert low["bytes of products"] < low["all bytes"]


def test_the_table_has_every_device(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(floor, "step", lambda batch: dict.fromkeys(("flops", "all bytes", "bytes of products"), batch))
    monkeypatch.setattr("sys.argv", ["floor", "--output", str(tmp_path)])
    floor.main()
    text = (tmp_path / "floor.md").read_text(encoding="utf-8")
    assert all(device.name in text for device in floor.DEVICES)
    assert "17,400 steps" in text
    assert text in capsys.readouterr().out

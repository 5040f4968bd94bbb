"""The benchmark of times: both sides of a ratio agree, and its command writes what it measured."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import init_against, init_time


def test_mimetic_and_its_transcription_give_one_product_for_one_noise():
    found = init_against.differences((32, 8, 96, 1, 3))
    assert found["mimetic"]["query_key product"] < 1e-6  # both are stored in float64 here, computed in it as well
    assert found["mimetic"]["value_output product"] < 1e-6
    assert 1e-9 < found["mimetic, float32"]["query_key product"] < 1e-4
    assert 1e-9 < found["mimetic, float32"]["value_output product"] < 1e-4


PARTS = ("svd", "mimetic", "curve", "adam")  # memory forks, and pytest has threads


@pytest.mark.slow
def test_the_command_writes_numbers_tables_and_the_picture(tmp_path, monkeypatch, capsys):
    arguments = ["--repeats", "1", "--adam-iterations", "3", "--max-width", "48"]
    monkeypatch.setattr(sys, "argv", ["init_time", "--parts", *PARTS, *arguments, "--output", str(tmp_path)])
    monkeypatch.setattr(init_against, "VIT_B", (32, 8, 48, 1, 3))
    monkeypatch.setattr(init_against, "VIT_T", (32, 8, 48, 1, 3))
    monkeypatch.setattr(init_against, "VIT_B_4", (32, 8, 48, 1, 3))
    layers = ((48, 1, 3), (48, 2, 3))
    monkeypatch.setattr(init_time, "CURVES", {"width": ((48, 1, 3), (96, 1, 6)), "layers": layers})
    init_time.main()
    record = json.loads((tmp_path / "init_time.json").read_text())
    (narrow,) = record["curve"]["width"]
    assert (narrow["width"], narrow["layers"], narrow["heads"]) == (48, 1, 3)
    assert set(narrow["times"]) == set(init_time.TIMED)
    assert all(time > 0 for times in narrow["times"].values() for time in times)
    assert [point["layers"] for point in record["curve"]["layers"]] == [1, 2]
    assert record["surroundings"]["threads"] == 1
    table = (tmp_path / "init_time.md").read_text()
    assert all(f"Against {paper}" in table for paper in ("2505.19985", "2404.01139", "2305.09828"))
    assert "| published, 3 steps |" in table
    assert "| **48** | 1 | 3 |" in table
    assert "| 48 | **2** | 3 |" in table
    assert table.strip() in capsys.readouterr().out
    assert (tmp_path / "init_time.png").stat().st_size > 1000

"""benchmarks/token_softmax_speed.py: what is timed computes the same."""

from __future__ import annotations

import json

import torch

from benchmarks import token_softmax_speed
from benchmarks.token_softmax_speed import ARMS


def test_ours_and_the_plain_version_are_equal_and_attention_without_it_is_not():
    query, key, value = torch.randn(3, 2, 2, 5, 4).unbind()
    torch.testing.assert_close(ARMS["ours"](query, key, value), ARMS["plain"](query, key, value))
    assert (ARMS["ours"](query, key, value) - ARMS["without"](query, key, value)).abs().max() > 0.1


def test_the_results_are_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(token_softmax_speed, "SHAPES", ((1, 2, 6, 4),))
    monkeypatch.setattr(token_softmax_speed, "keep_memory", lambda: None)
    monkeypatch.setattr("sys.argv", ["token_softmax_speed", "--rounds", "2", "--output", str(tmp_path)])
    token_softmax_speed.main()
    (row,) = json.loads((tmp_path / "token_softmax_speed.json").read_text(encoding="utf-8"))["rows"]
    assert 0 <= row["apart"] < 1e-5
    assert set(row["seconds"]) == set(ARMS)
    assert "| 1, 2, 6, 4 |" in capsys.readouterr().out

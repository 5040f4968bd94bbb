"""The benchmark of the Cayley convolution runs and writes what it says."""

from __future__ import annotations

import json

import torch

from benchmarks import cayley_speed
from structured_init.layers import CayleyConv2d


def test_the_benchmark_writes_json_and_a_table(tmp_path, monkeypatch):
    command = ["cayley_speed", "--shapes", "4@6", "--batch", "2", "--rounds", "3", "--output", str(tmp_path)]
    monkeypatch.setattr("sys.argv", command)
    cayley_speed.main()
    record = json.loads((tmp_path / "cayley_speed.json").read_text())
    assert [(row["channels"], row["size"], row["mode"]) for row in record["rows"]] == [
        (4, 6, "training"),
        (4, 6, "evaluation"),
    ]
    assert all(len(row["seconds"][kind]) == 3 for row in record["rows"] for kind in cayley_speed.LAYERS)
    assert (tmp_path / "cayley_speed.md").read_text().count("4@6²") == 2


def test_what_is_published_is_the_same_function():
    published, layer = cayley_speed.build("published", 4), CayleyConv2d(4, 4, 3)
    layer.load_state_dict(published.state_dict())
    x = torch.randn(2, 4, 6, 6)
    torch.testing.assert_close(published(x), layer(x), rtol=0, atol=1e-5)

"""benchmarks/cayley_speed.py: what is called published is the same function, and every layer is timed."""

from __future__ import annotations

import json
import sys

import torch

from benchmarks import cayley_speed
from structured_init.layers.cayley_conv import HALF_SPECTRUM


def test_ours_and_the_published_formula_are_one_function():
    torch.manual_seed(0)
    ours, published = (cayley_speed.build(kind, 4) for kind in ("Cayley", "published"))
    ours.alpha_norm = HALF_SPECTRUM  # how the published code measures α
    published.load_state_dict({name: ours.state_dict()[name] for name in published.state_dict()})
    x = torch.randn(2, 4, 8, 8)
    torch.testing.assert_close(ours(x), published(x), atol=1e-5, rtol=1e-4)


def test_the_results_are_written(tmp_path, monkeypatch, capsys):
    arguments = ["--shapes", "4@8", "--batch", "2", "--rounds", "4", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["cayley_speed", *arguments])
    cayley_speed.main()
    record = json.loads((tmp_path / "cayley_speed.json").read_text(encoding="utf-8"))
    assert [row["mode"] for row in record["rows"]] == ["training", "evaluation"]
    for row in record["rows"]:
        assert list(row["seconds"]) == [*cayley_speed.LAYERS, *cayley_speed.PIECES[row["mode"]]]
        assert all(len(times) == 4 for times in row["seconds"].values())
    table = (tmp_path / "cayley_speed.md").read_text(encoding="utf-8").splitlines()
    assert table[-1].startswith("| 4@8² | evaluation | ")
    assert table[-1] in capsys.readouterr().out

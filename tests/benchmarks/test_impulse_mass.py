"""benchmarks/impulse_mass.py: every cell is measured on the solution of its own solver, and written."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from benchmarks import impulse_mass


@pytest.fixture
def small(monkeypatch):
    """One small size on 4 × 4 tokens, and drawn images."""
    monkeypatch.setattr(impulse_mass, "SIZES", {"tiny": (96, 3, 3)})
    monkeypatch.setattr(impulse_mass, "PATCH_SIZE", 8)
    monkeypatch.setattr(impulse_mass, "real_images", lambda count: torch.randn(count, 3, 32, 32))


def test_the_results_are_written(small, tmp_path, monkeypatch, capsys):
    arguments = ["--sizes", "tiny", "--solvers", "svd", "separable (default)", "--values", "host", "--images", "2"]
    monkeypatch.setattr(sys, "argv", ["impulse_mass", *arguments, "--output", str(tmp_path)])
    impulse_mass.main()
    rows = json.loads((tmp_path / "impulse_mass.json").read_text(encoding="utf-8"))["rows"]
    assert [(row["solver"], row["surroundings"]) for row in rows] == [
        (solver, around) for solver in ("svd", "separable (default)") for around in impulse_mass.SURROUNDINGS
    ]
    assert all(len(row["mass"]) == 3 for row in rows)
    assert all(mass > 0.5 for row in rows for mass in row["mass, positions"])
    table = (tmp_path / "impulse_mass.md").read_text(encoding="utf-8")
    assert len(table.splitlines()) == 2 + len(rows)
    assert table.strip() in capsys.readouterr().out


def test_what_is_recalled_is_what_was_solved(small):
    solver = impulse_mass.solvers(0)["separable (default)"]
    solved, other = (impulse_mass.network("tiny", seed) for seed in (0, 1))
    impulse_mass.initialize(solved, solver, seed=0)
    impulse_mass.initialize(other, impulse_mass.Recalled(solved), seed=5)
    for ours, theirs in zip(*map(impulse_mass.attention_sites, (other, solved)), strict=True):
        assert torch.equal(ours.query, theirs.query)
        assert not torch.equal(ours.value, theirs.value)
    assert torch.equal(other.pos_embed, solved.pos_embed)

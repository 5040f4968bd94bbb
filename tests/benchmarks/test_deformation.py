"""The benchmark of deformations: which networks it goes on from, what it asks for, and its table and picture."""

from __future__ import annotations

import itertools
import sys
from types import SimpleNamespace

import pandas as pd
import pytest

from benchmarks import deformation
from benchmarks.deformation import ARMS, table, trained_networks
from comparison.run.arms import parse_arms
from structured_init import StructuredInitError

CURVE = {"default": (0.5, 0.6), "deform": (0.5, 0.4)}


def results(seed):
    rows = [{"arm": "default", "seed": seed, "test/accuracy": 0.6}, {"arm": "deform", "seed": seed}]
    rows[1]["test/accuracy"] = 0.4 + 0.01 * seed
    return pd.DataFrame(rows)


def curves(seed):
    rows = [
        {"arm": arm, "seed": seed, "metric": "val/accuracy", "step": 100.0 * (place + 1), "value": value}
        for arm, values in CURVE.items()
        for place, value in enumerate(values)
    ]
    return pd.DataFrame(rows)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Runs of two seeds, of which one is complete in another arm only."""
    found = [
        SimpleNamespace(arm=arm, seed=seed, result={} if complete else None, folder=tmp_path / arm / str(seed))
        for arm, seed, complete in (("default", 0, True), ("default", 1, True), ("default", 2, False), ("add", 2, True))
    ]
    monkeypatch.setattr(deformation, "find_runs", lambda folder: found)
    return found


def test_it_goes_on_from_the_complete_networks_of_the_default(runs, tmp_path):
    assert trained_networks(tmp_path) == {
        seed: tmp_path / "default" / str(seed) / "checkpoints" / "last.ckpt" for seed in (0, 1)
    }
    runs[1].seed = 0
    with pytest.raises(StructuredInitError, match="several runs of 'default' for a seed"):
        trained_networks(tmp_path)
    runs[0].result = runs[1].result = None
    with pytest.raises(StructuredInitError, match="no complete run of 'default'"):
        trained_networks(tmp_path)


def test_each_network_is_deformed_with_its_own_seed(runs, tmp_path, monkeypatch, capsys):
    commands = []
    monkeypatch.setattr(deformation, "compare", commands.append)
    monkeypatch.setattr(deformation, "load_results", lambda folder: results(int(str(folder)[-1])))
    monkeypatch.setattr(deformation, "load_curves", lambda folder: curves(int(str(folder)[-1])))
    arguments = ["small", "--trained", str(tmp_path), "--output", str(tmp_path / "out"), "--trainer.devices", "1"]
    monkeypatch.setattr(sys, "argv", ["deformation", *arguments])
    deformation.main()
    for seed, command in enumerate(commands):
        given = dict(itertools.pairwise(command))
        assert given["--seeds"] == str(seed)
        assert given["--model.init_args.network_args.weights"].endswith(f"default/{seed}/checkpoints/last.ckpt")
        assert given["--output"] == str(tmp_path / "out" / f"seed_{seed}")
        assert command[-2:] == ["--trainer.devices", "1"]
    assert len(commands) == 2
    assert "| `deform` | 2 | 40.5 ± 6.4 | −19.5 ± 6.4 |" in (tmp_path / "out" / "deformation.md").read_text()
    assert "| `default` | 2 | 60.0 ± 0.0 |  |" in capsys.readouterr().out
    assert (tmp_path / "out" / "deformation.png").stat().st_size > 1000


def test_its_arms_are_shipped():
    assert list(parse_arms(",".join(ARMS))) == ["default", "remix_100", "deform", "deform_early", "deform_tokens"]


def test_a_gain_has_its_sign():
    better = results(0).assign(**{"test/accuracy": [0.5, 0.6]})
    assert "+10.0" in table(pd.concat([better, better.assign(seed=1)]))

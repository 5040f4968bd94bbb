"""benchmarks/recall_speed.py: every network is timed at the sizes of its configuration, and nothing that differs is."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import memory, recall_speed
from lightning_modules.cli.config_names import read_config

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(recall_speed, "BATCH", 2)
    monkeypatch.setattr(recall_speed, "LENGTHS", (3,))
    monkeypatch.setattr(recall_speed, "SIZES", {"hidden_size": 16, "num_hidden_layers": 2})
    small = {"mamba": {"state_size": 2}, "mamba2": {"state_size": 2, "head_dim": 8}, "hybrid": {"state_size": 2}}
    monkeypatch.setattr(recall_speed, "NETWORKS", recall_speed.NETWORKS | small)


def test_every_network_is_timed_and_written_down(tiny, tmp_path, monkeypatch, capsys):
    pytest.importorskip("mambapy")
    threads = str(torch.get_num_threads())  # which the process shares with other tests
    monkeypatch.setattr(sys, "argv", ["recall_speed", "--rounds", "1", "--threads", threads, "--output", str(tmp_path)])
    monkeypatch.setattr(recall_speed, "TURN", 0.001)
    recall_speed.main()
    record = json.loads((tmp_path / "recall_speed.json").read_text(encoding="utf-8"))
    timed = {row["network"]: set(row["steps_per_second"]) for row in record["rows"]}
    chunks = {"ours", "transformers", "chunk 32"}
    assert timed == {
        "mamba": {"ours", "transformers", "mambapy"},
        "mamba2": chunks,
        "hybrid": chunks,
        **{alone: {"ours"} for alone in ("linear_attention", "gpt2", "llama")},
    }
    for row in record["rows"]:
        assert row["tokens"] == 8
        assert all(len(rounds) == 1 and rounds[0] > 0 for rounds in row["steps_per_second"].values())
        assert (row["apart"] is None) == (len(row["steps_per_second"]) == 1)
    table = (tmp_path / "recall_speed.md").read_text(encoding="utf-8")
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 6
    assert all(line in table for line in printed)
    assert all(line.count("|") == 10 for line in table.splitlines() if line.startswith("|"))


@pytest.mark.parametrize("name", ["mamba", "mamba2", "hybrid"])
def test_all_paths_have_the_same_loss_and_transformers_own_layers(tiny, name):
    pytest.importorskip("mambapy")
    batch = recall_speed.draw(5, seed=1)
    networks = recall_speed.paths(recall_speed.build(name, 12, seed=1))
    losses = {path: recall_speed.loss(network, batch) for path, network in networks.items()}
    assert len(losses) == 3
    for value in losses.values():
        torch.testing.assert_close(value, losses["ours"], rtol=1e-4, atol=1e-4)
    layers = {path: {type(module).__name__ for module in network.modules()} for path, network in networks.items()}
    for path, kinds in layers.items():
        chunked = {kind for kind in kinds if kind.startswith("ChunkedMamba")}
        assert bool(chunked) == (path == "ours")
        assert path == "ours" or kinds & {"MambaMixer", "Mamba2Mixer"}


def test_each_path_has_its_setting(tiny):
    pytest.importorskip("mambapy")
    mamba = recall_speed.paths(recall_speed.build("mamba", 12, seed=0))
    assert [mamba[path].backbone.layers[0].mixer.use_mambapy for path in ("transformers", "mambapy")] == [False, True]
    mamba2 = recall_speed.paths(recall_speed.build("mamba2", 12, seed=0))
    assert [mamba2[path].backbone.layers[0].mixer.chunk_size for path in ("transformers", "chunk 32")] == [256, 32]


def test_a_path_that_differs_stops_the_benchmark(tiny):
    networks = recall_speed.paths(recall_speed.build("mamba2", 12, seed=0))
    with torch.no_grad():
        networks["chunk 32"].backbone.layers[0].mixer.A_log.add_(1)
    with pytest.raises(SystemExit, match=r"'chunk 32' differs from ours by .*: not the same network"):
        recall_speed.difference(networks, recall_speed.draw(5, seed=0))


def test_a_step_trains(tiny):
    network, batch = recall_speed.build("mamba2", 12, seed=0), recall_speed.draw(5, seed=0)
    before = recall_speed.loss(network, batch).item()
    step = recall_speed.training_step(network, batch)
    for _ in range(5):
        step()
    assert recall_speed.loss(network, batch).item() < before


def test_sizes_are_those_of_the_shipped_experiment():
    shipped = read_config("experiment/mamba2_copying_short")
    data = shipped["data"]["init_args"]
    assert shipped["model"]["init_args"]["network_args"] == recall_speed.SIZES | recall_speed.NETWORKS["mamba2"]
    assert data["task_args"] == {"num_letters": recall_speed.LETTERS}
    assert (data["max_length"], data["batch_size"]) == (recall_speed.LENGTHS[0], recall_speed.BATCH)


def test_program_starts_anew_once_with_its_own_command_line(monkeypatch):
    started = []
    monkeypatch.setattr(os, "execve", lambda *call: started.append(call))
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "benchmarks.recall_speed", "--rounds", "1"])
    for name in memory.KEEP_MEMORY:
        monkeypatch.delenv(name, raising=False)
    memory.keep_memory()
    ((program, arguments, environment),) = started
    assert arguments == [program, "-m", "benchmarks.recall_speed", "--rounds", "1"]
    assert program == sys.executable
    monkeypatch.setattr(os, "environ", environment)
    memory.keep_memory()
    assert len(started) == 1

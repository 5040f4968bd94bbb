"""benchmarks/training_overhead.py: both sides train the same, and what is timed is written down."""

from __future__ import annotations

import json
import os
import sys

import pytest

from benchmarks import memory, training_overhead
from benchmarks.overhead_cases import CPU, certified, image, language, recall, text

SMALL = {
    "language": language(16, 1, 2, 8, 2, 32, clip=1.0),
    "text": text(16, 1, 2, 8, 2, vocab=32),
    "image": image("vit_tiny_patch2_32", 2, embed_dim=16, depth=1, num_heads=2, patch_size=16),
    "certified": certified(2, width=0.125),
    "recall": recall("mamba2", 2, 8, hidden_size=32),
}


@pytest.mark.parametrize("name", SMALL)
def test_the_bare_loop_and_the_task_end_with_the_same_weights(name):
    row = training_overhead.measure(name, SMALL[name], 2, "cpu", "32-true")
    assert row["largest_difference_of_weights"] < 1e-5  # a mean may be taken in another order
    assert row["turns"] >= 2
    lower, upper = row["extra_quartiles_ms"]
    assert row["bare_ms"] > 0
    assert row["task_ms"] > 0
    assert lower <= row["extra_ms"] <= upper


def test_another_loss_in_the_bare_loop_is_seen():
    twice = image("vit_tiny_patch2_32", 2, embed_dim=16, depth=1, num_heads=2, patch_size=16)
    object.__setattr__(twice, "loss", lambda network, batch: network(batch[0]).square().mean())
    assert training_overhead.measure("image", twice, 2, "cpu", "32-true")["largest_difference_of_weights"] > 1e-3


def test_the_results_are_written_case_by_case(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(training_overhead, "keep_memory", lambda: None)
    monkeypatch.setattr(training_overhead, "CPU", {"image, small": SMALL["image"], "other": SMALL["text"]})
    monkeypatch.setattr(
        sys, "argv", ["training_overhead", "--turns", "2", "--only", "image", "--output", str(tmp_path)]
    )
    training_overhead.main()
    record = json.loads((tmp_path / "training_overhead.json").read_text(encoding="utf-8"))
    assert [row["case"] for row in record["results"]] == ["image, small"]
    assert (tmp_path / "training_overhead.md").read_text(encoding="utf-8").strip() in capsys.readouterr().out


def test_every_task_has_a_small_and_a_long_case():
    tasks = [name.partition(",")[0] for name in CPU]
    assert all(tasks.count(task) >= 2 for task in set(tasks))
    assert len(set(tasks)) == 5


def test_the_program_starts_itself_anew_once_with_malloc_set_up(monkeypatch):
    started = []
    monkeypatch.setattr(os, "execve", lambda path, words, environment: started.append((path, words, environment)))
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    memory.keep_memory()
    (path, words, environment) = started[0]
    assert path == sys.executable
    assert words[1:] == sys.orig_argv[1:]
    monkeypatch.setattr(os, "environ", environment)
    memory.keep_memory()
    assert len(started) == 1

"""A comparison that is killed with SIGKILL, all of its processes at once, ends like one that was left alone."""

import pytest
import torch

from benchmarks import compare_kills
from benchmarks.compare_kills import assert_same, kill_and_compare
from comparison.runs.folder import Run, find_runs
from lightning_modules.cli import main

QUICK = [
    *("-c", "vit_digits", "--inits", "sincos", "--seeds", "0", "--trainer.max_epochs", "3", "--attention.samples", "2"),
    *("--data.fraction", "0.2"),
]


def here(words):
    main([str(word) for word in words])
    return 0


@pytest.mark.slow
def test_a_killed_comparison_ends_like_one_that_was_left_alone(tmp_path, monkeypatch):
    """The one that is killed is a command; what comes before and after it is the same command in this process."""
    monkeypatch.setattr(compare_kills, "finish", lambda folder, words: here(["compare", *words, "--output", folder]))
    lines = kill_and_compare(QUICK, kills=1, seed=3, output=tmp_path, longest=1.0)
    assert len(lines) == 1
    (run,) = find_runs(tmp_path / "undisturbed")
    assert run.result["epochs"] == 3
    run.result_file.write_text(run.result_file.read_text().replace('"epochs": 3', '"epochs": 2'))
    with pytest.raises(AssertionError, match="the results of"):
        assert_same(tmp_path / "undisturbed", tmp_path / "killed_0")


def finished(folder, weight):
    """Write what a complete run of one step leaves behind."""
    run = Run("default", 0, (), None, folder / "runs" / "default" / "seed_0")
    (run.folder / "checkpoints").mkdir(parents=True)
    run.write_settings()
    run.write_result({"metrics": {}, "tested": True, "seconds": weight, "epochs": 1})
    (run.folder / "metrics.csv").write_text(f"epoch,seconds,val/loss\n0,{weight},0.5\n")
    state = {"state_dict": {"weight": torch.tensor([weight])}, "optimizer_states": []}
    torch.save(state, run.folder / "checkpoints" / "last.ckpt")


def test_a_weight_that_differs_is_seen_and_the_time_is_not(tmp_path):
    for name in ("one", "same"):
        finished(tmp_path / name, 1.0)
    assert_same(tmp_path / "one", tmp_path / "same")
    finished(tmp_path / "other", 2.0)
    with pytest.raises(AssertionError, match=r"tensors in .* differ"):
        assert_same(tmp_path / "one", tmp_path / "other")

"""The runner of paired runs, on a task of seconds: what a comparison stands on."""

import json

import pytest
import torch

from benchmarks.paired_runs import Run, final_accuracy, learning_curve, paired_runs, train
from structured_init import StructuredInitError

QUICK = [
    *("--trainer.max_epochs", "1", "--trainer.limit_train_batches", "3", "--trainer.limit_val_batches", "1"),
    *("--trainer.limit_test_batches", "1", "--trainer.log_every_n_steps", "1", "--attention.enabled", "false"),
    *("--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"),
]


def test_runs_are_listed_seed_by_seed_so_that_an_unfinished_comparison_is_paired(tmp_path):
    runs = paired_runs(tmp_path, ["a", "b"], [0, 1])
    assert [(run.seed, run.start) for run in runs] == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]
    assert len({run.folder for run in runs}) == 4


def test_a_complete_run_is_not_repeated_and_its_result_is_read(tmp_path):
    run = Run("default", 0, tmp_path / "default" / "seed_0")
    train(run, "vit_digits", QUICK)
    written = run.result.stat().st_mtime_ns
    train(run, "vit_digits", QUICK)
    assert run.result.stat().st_mtime_ns == written
    assert final_accuracy([run]) == {"default": {0: json.loads(run.result.read_text())["accuracy"]}}
    assert run.checkpoint.is_file()
    epochs, values = learning_curve(run)
    assert epochs == [0]
    assert 0 <= values[0] <= 1


def test_a_folder_never_answers_for_other_settings(tmp_path, monkeypatch):
    run = Run("default", 0, tmp_path / "default" / "seed_0")
    monkeypatch.setattr("benchmarks.paired_runs.main", lambda args: pytest.fail("no run is expected"))
    run.folder.mkdir(parents=True)
    threads = torch.get_num_threads()
    settings = {"start": "default", "experiment": "vit_digits", "arguments": [], "threads": threads}
    (tmp_path / "default" / "seed_0.settings.json").write_text(json.dumps(settings))
    run.result.write_text("{}")
    train(run, "vit_digits", [])
    with pytest.raises(StructuredInitError, match="holds a run with experiment vit_digits, not vit_cifar10"):
        train(run, "vit_cifar10", [])
    with pytest.raises(StructuredInitError, match="arguments"):
        train(run, "vit_digits", ["--trainer.max_epochs", "3"])
    with pytest.raises(StructuredInitError, match=r"start default, not other/default\.yaml"):
        train(Run("other/default.yaml", 0, run.folder), "vit_digits", [])


def test_an_unfinished_run_counts_for_nothing(tmp_path):
    assert final_accuracy([Run("default", 0, tmp_path)]) == {}


def test_the_picture_of_the_demo_shows_every_start(tmp_path):
    from benchmarks.demo_figure import demo_figure

    quick = [*QUICK, "--attention.enabled", "true", "--attention.figures", "false"]
    runs = paired_runs(tmp_path, ["default", "mimetic_host"], [0])
    for run in runs:
        train(run, "vit_digits", quick)
    figure = demo_figure(runs, final_accuracy(runs))
    texts = [panel._suptitle.get_text() for panel in figure.subfigs[1].subfigs]
    assert texts == ["Attention, default", "Attention, mimetic"]

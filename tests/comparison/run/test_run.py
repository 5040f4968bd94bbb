"""One run, in this process: what it leaves, and that a killed one ends like one that was left alone."""

import csv
import datetime
import json
import math
import sys
from types import SimpleNamespace

import pytest
import torch
from compared import assert_same, one_run
from lightning.pytorch import Callback

from comparison.run.run import last_checkpoint, train
from comparison.run.run_log import RunLog, read_rows
from comparison.run.stopping import NeedsValidation
from lightning_modules.cli import main
from structured_init import StructuredInitError

pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory")  # that of a resumed run is not empty


class Stop(Callback):
    """Raises in the middle of a batch, where one is asked for."""

    at: int | None = None

    def on_before_optimizer_step(self, trainer, *_):
        if trainer.global_step == Stop.at:
            raise RuntimeError("stopped here")


class Dated(Callback):
    """Keeps what a checkpoint gives back to those alone who trust it."""

    def state_dict(self):
        return {"when": datetime.datetime(2026, 1, 1)}


def make_run(folder, *further, **changes):
    """A run of three epochs of four steps."""
    steps = ("--trainer.max_epochs=3", "--trainer.limit_train_batches=4", "--data.fraction=0.3")
    return one_run(folder, *steps, "--trainer.callbacks+=test_run.Stop", *further, **changes)


@pytest.fixture
def a_run(folder):
    """A factory of such runs."""
    return lambda name, *further, **changes: make_run(folder / name, *further, **changes)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, tiny):
    """Such a run that was left alone."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "tiny.yaml").write_text(tiny)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setitem(sys.modules, "test_run", sys.modules[__name__])
        run = make_run(folder)
        train(run)
    return run


@pytest.fixture(autouse=True)
def named(monkeypatch):
    """Let the command line find this file's callback by its name."""
    monkeypatch.setitem(sys.modules, "test_run", sys.modules[__name__])
    Stop.at = None


def test_a_run_leaves_its_result_and_is_the_fit_that_its_settings_say(a_run, folder):
    run = a_run("out")
    train(run)
    assert run.complete
    result = json.loads(run.result_file.read_text())
    assert result["metrics"].keys() == {"val/accuracy", "val/loss", "test/accuracy", "test/loss"}
    assert (result["epochs"], result["steps"], result["seed"], result["arm"]) == (3, 12, 1, "sincos")
    assert result["environment"]["threads"] == torch.get_num_threads()
    assert 0 < result["initialization_seconds"] < result["seconds"]
    settings = json.loads(run.beside(".settings.json").read_text())
    assert settings["identity"] == "i"
    again = main([*settings["arguments"], f"--trainer.logger.init_args.folder={folder / 'again'}"])
    assert again.trainer.callback_metrics["val/loss"].item() == result["metrics"]["val/loss"]
    with (run.folder / "metrics.csv").open() as file:
        last = [row for row in csv.DictReader(file) if row["val/loss"]][-1]
    assert float(last["val/loss"]) == result["metrics"]["val/loss"]
    assert 0 < float(last["seconds"]) <= result["seconds"]


def test_a_complete_run_is_not_repeated(a_run, monkeypatch):
    run = a_run("out")
    run.folder.mkdir(parents=True)
    run.result_file.write_text('{"metrics": {}, "tested": true}')
    monkeypatch.setattr("comparison.run.run._fit", lambda *_: pytest.fail("no run is expected"))
    train(run)


@pytest.mark.parametrize("step", [2, 4, 6, 11])
def test_a_run_that_was_stopped_ends_like_one_that_was_left_alone(a_run, undisturbed, step):
    stopped = a_run("stopped")
    Stop.at = step
    with pytest.raises(RuntimeError, match="stopped here"):
        train(stopped)
    assert (last_checkpoint(stopped.folder) is None) == (step < 4)  # one is made after each epoch of four steps
    assert not stopped.complete
    Stop.at = None
    train(stopped)
    assert_same(undisturbed, stopped)


@pytest.mark.parametrize("row", [1, 3, 5])
def test_a_row_that_was_due_when_a_run_was_killed_is_not_lost(a_run, undisturbed, monkeypatch, row):
    """The row of an epoch is written right after its checkpoint; here the run dies in between."""
    killed = a_run("killed")
    assert "train/loss" in read_rows(undisturbed.folder / "metrics.csv")[row]
    log, rows = RunLog.log_metrics, []

    def die(self, metrics, step=None):
        rows.append(step)
        if len(rows) == row + 1:
            raise RuntimeError("stopped here")
        log(self, metrics, step)

    monkeypatch.setattr(RunLog, "log_metrics", die)
    with pytest.raises(RuntimeError, match="stopped here"):
        train(killed)
    assert len(read_rows(killed.folder / "metrics.csv")) == row
    monkeypatch.setattr(RunLog, "log_metrics", log)
    train(killed)
    assert_same(undisturbed, killed)


def test_a_run_that_was_killed_after_its_last_step_does_what_was_left(a_run, undisturbed):
    killed = a_run("killed")
    train(killed)
    for name in ("result.json", "attention/after.safetensors", "representations/after.safetensors"):
        (killed.folder / name).unlink()
    statistics = killed.folder / "attention" / "statistics.json"
    statistics.write_text(json.dumps({"before": json.loads(statistics.read_text())["before"]}))
    train(killed)
    assert_same(undisturbed, killed)


def stop(run, step=6):
    Stop.at = step
    with pytest.raises(RuntimeError, match="stopped here"):
        train(run)
    Stop.at = None


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def change(path):
    """Change one byte among the weights, where nothing but a checksum tells."""
    content = bytearray(path.read_bytes())
    head = torch.load(path, weights_only=True)["state_dict"]["network.head.weight"]
    content[content.index(head.numpy().tobytes())] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, change])
def test_a_run_whose_last_checkpoint_is_damaged_goes_on_from_the_one_before_it(a_run, undisturbed, capsys, damage):
    run = a_run("out")
    stop(run)
    last = run.folder / "checkpoints" / "last.ckpt"
    damage(last)
    (last.parent / ".last-0a1b2c3d.ckpt").write_bytes(b"what a kill left of one that was being written")
    damaged = last.read_bytes()
    train(run)
    said = [line for line in capsys.readouterr().err.splitlines() if "damaged" in line]
    kept = f"kept as '{last}.damaged'"
    assert said == [f"sincos, seed 1: damaged: 'last.ckpt', {kept}: it goes on from 'epoch=0-step=4.ckpt'"]
    assert last.with_name("last.ckpt.damaged").read_bytes() == damaged
    for name in ("last.ckpt.damaged", "epoch=0-step=4.ckpt"):  # Lightning keeps the one that it has gone on from
        last.with_name(name).unlink()
    assert_same(undisturbed, run)


@pytest.mark.parametrize("damage", ["cut", "missing"])
def test_without_a_whole_checkpoint_a_run_begins_anew_and_what_is_damaged_is_kept(a_run, undisturbed, capsys, damage):
    stopped = a_run("stopped")
    stop(stopped)
    for path in (stopped.folder / "checkpoints").iterdir():
        cut(path) if damage == "cut" else path.unlink()
    train(stopped)
    assert_same(undisturbed, stopped)
    kept = stopped.folder.with_name("seed_1.damaged")
    assert kept.exists() == (damage == "cut")
    assert (f"kept as '{kept}': it begins anew" in capsys.readouterr().err) == (damage == "cut")


def test_what_only_those_can_read_who_trust_it_is_named_and_kept_and_the_run_goes_on_for_them(a_run, undisturbed):
    run = a_run("out", "--trainer.callbacks+=test_run.Dated")
    stop(run)
    before = {path: path.read_bytes() for path in run.folder.rglob("*.ckpt")}
    with pytest.raises(StructuredInitError, match=r"never run \(datetime.datetime\).*, add --weights_only false"):
        train(run)
    assert {path: path.read_bytes() for path in run.folder.rglob("*.ckpt")} == before
    trusting = a_run("out", "--trainer.callbacks+=test_run.Dated", "--weights_only=false")
    began = {row["seconds"] for row in read_rows(run.folder / "metrics.csv")}
    train(trusting)
    assert began < {row["seconds"] for row in read_rows(run.folder / "metrics.csv")}  # its first epoch is not repeated
    assert trusting.latest().result["metrics"] == undisturbed.latest().result["metrics"]


def test_the_test_split_is_read_later_where_a_learning_rate_is_to_be_chosen(a_run, undisturbed):
    later = a_run("later", learning_rates=[0.001])
    assert not later.tested
    train(later)
    assert later.complete
    assert not any(name.startswith("test/") for name in later.latest().result["metrics"])
    assert not any("test/loss" in row for row in read_rows(later.folder / "metrics.csv"))
    object.__setattr__(later, "tested", True)
    assert not later.complete
    train(later)
    # The experiment's own learning rate is 0.001.
    assert later.latest().result["metrics"] == undisturbed.latest().result["metrics"]
    assert later.latest().result["seconds"] > 0
    assert {row["val/loss"] for row in read_rows(later.folder / "metrics.csv")} == {
        row["val/loss"] for row in read_rows(undisturbed.folder / "metrics.csv")
    }


def test_a_training_that_ends_before_it_is_validated_is_refused_where_its_validation_decides(a_run):
    """Three epochs of four steps: of three steps none is validated, of four the last is."""
    short = a_run("short", "--trainer.max_steps=3", learning_rates=[0.001])
    with pytest.raises(StructuredInitError, match=r"ends after 3 steps, and the first validation is after 4: give "):
        train(short)
    enough = a_run("enough", "--trainer.max_steps=4", learning_rates=[0.001])
    train(enough)
    assert "val/loss" in enough.latest().result["metrics"]


def test_whether_a_loader_without_a_length_is_validated_nobody_knows_before_it_ends():
    endless = {"check_val_every_n_epoch": 1, "num_training_batches": math.inf, "val_check_batch": math.inf}
    known = {"check_val_every_n_epoch": 2, "num_training_batches": 10, "val_check_batch": 10}
    of = {"accumulate_grad_batches": 2, "enable_validation": True, "max_steps": 9}
    NeedsValidation().on_train_start(SimpleNamespace(**endless, **of), None)
    with pytest.raises(StructuredInitError, match="the first validation is after 10"):  # 20 batches, two a step
        NeedsValidation().on_train_start(SimpleNamespace(**known, **of), None)


def test_a_row_that_was_being_written_is_left_out(tmp_path):
    file = tmp_path / "metrics.csv"
    file.write_text("epoch,step,x\n0,3,0.5\n1,7,0.25\n1,1")
    assert [row["step"] for row in read_rows(file)] == ["3", "7"]
    assert read_rows(tmp_path / "none.csv") == []

"""One run, in this process: what it leaves, and that a killed one ends like one that was left alone."""

import csv
import datetime
import json
import sys

import pytest
import torch
from compared import assert_same, one_run
from lightning.pytorch import Callback

from comparison.train.run import train
from comparison.train.run_log import RunLog, read_rows
from comparison.train.time_limit import StopAtDeadline
from lightning_modules.cli import main
from lightning_modules.tasks.checkpoint import checkpoints_in
from structured_init import StructuredInitError

pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory")  # that of a resumed run is not empty
FAR = 1e12


class Stop(Callback):
    """Raises in the middle of a batch, or lets the time run out there, where one of both is asked for."""

    at: int | None = None
    late: int | None = None

    def on_before_optimizer_step(self, trainer, *_):
        if trainer.global_step == Stop.at:
            raise RuntimeError("stopped here")
        for each in trainer.callbacks:
            if isinstance(each, StopAtDeadline) and trainer.global_step == Stop.late:
                each.deadline = 0.0


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
        run, before = make_run(folder), (sys.modules["__main__"].__spec__, sys.argv)
        train(run)
        assert (sys.modules["__main__"].__spec__, sys.argv) == before
    return run


@pytest.fixture(autouse=True)
def named(monkeypatch):
    """Let the command line find this file's callback by its name."""
    monkeypatch.setitem(sys.modules, "test_run", sys.modules[__name__])
    Stop.at = Stop.late = None


def test_a_run_leaves_its_result_and_is_the_fit_that_its_settings_say(undisturbed, folder):
    run = undisturbed
    assert run.complete
    result = json.loads(run.result_file.read_text())
    assert result["metrics"].keys() == {"val/accuracy", "val/loss", "test/accuracy", "test/loss"}
    assert (result["epochs"], result["steps"], result["seed"], result["arm"]) == (3, 12, 1, "sincos")
    assert result["environment"]["threads"] == torch.get_num_threads()
    assert 0 < result["initialization_seconds"] < result["seconds"]
    settings = json.loads(run.beside(".settings.json").read_text())
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
    monkeypatch.setattr("comparison.train.run._fit", lambda *_: pytest.fail("no run is expected"))
    train(run)


def killed_at(step):
    def interrupt(run):
        Stop.at = step
        with pytest.raises(RuntimeError, match="stopped here"):
            train(run)
        Stop.at = None
        whole, _ = checkpoints_in(run.folder / "checkpoints")
        assert bool(whole) == (step >= 4)  # one is made after each epoch of four steps
        assert not run.complete

    return interrupt


def out_of_time_at(step):
    def interrupt(run):
        Stop.late = step
        train(run, FAR)
        Stop.late = None
        state = torch.load(run.folder / "checkpoints" / "last.ckpt", weights_only=True)
        assert (state["global_step"], run.complete) == ((step // 4 + 1) * 4, False)  # at the end of its epoch

    return interrupt


def killed_with_its_row_due(row):
    """The row of an epoch is written right after its checkpoint; here the run dies in between."""

    def interrupt(run):
        log, before = RunLog.log_metrics, len(read_rows(run.folder / "metrics.csv"))
        rows = list(range(before))

        def die(self, metrics, step=None):
            rows.append(step)
            if len(rows) == row + 1:
                raise RuntimeError("stopped here")
            log(self, metrics, step)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RunLog, "log_metrics", die)
            with pytest.raises(RuntimeError, match="stopped here"):
                train(run)
        assert len(read_rows(run.folder / "metrics.csv")) == row

    return interrupt


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def change(path):
    """Change one byte among the weights, where nothing but a checksum tells."""
    content = bytearray(path.read_bytes())
    head = torch.load(path, weights_only=True)["state_dict"]["network.head.weight"]
    content[content.index(head.numpy().tobytes())] ^= 1
    path.write_bytes(content)


def damaged(damage):
    """The last checkpoint; the run goes on from the one before it."""

    def interrupt(run):
        last = run.folder / "checkpoints" / "last.ckpt"
        damage(last)
        (last.parent / ".last-0a1b2c3d.ckpt").write_bytes(b"what a kill left of one that was being written")

    return interrupt


def cut_all(run):
    for path in (run.folder / "checkpoints").iterdir():
        cut(path)


def killed_after_its_last_step(run):
    train(run)
    for name in ("result.json", "attention/after.safetensors", "representations/after.safetensors"):
        (run.folder / name).unlink()
    statistics = run.folder / "attention" / "statistics.json"
    statistics.write_text(json.dumps({"before": json.loads(statistics.read_text())["before"]}))


LEFT_OUT = "'{last}' is damaged: the run goes on from what was before it"
BEGUN_ANEW = "'{last}' is damaged: the run begins anew"
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("interruptions", "said"),
    [
        pytest.param([out_of_time_at(1), killed_at(6), damaged(cut)], LEFT_OUT, id="out of time, killed, damaged"),
        pytest.param(
            [killed_with_its_row_due(3), killed_after_its_last_step], "", id="a row and all that follows the last step"
        ),
        pytest.param([killed_at(6), damaged(change)], LEFT_OUT, id="one byte", marks=slow),
        pytest.param([killed_at(6), cut_all], BEGUN_ANEW, id="nothing whole", marks=slow),
        pytest.param([killed_at(2), killed_at(4), killed_at(11)], "", id="killed thrice", marks=slow),
        pytest.param([out_of_time_at(step) for step in (0, 5, 11)], "", id="out of time in each epoch", marks=slow),
        pytest.param([killed_with_its_row_due(1), killed_with_its_row_due(5)], "", id="first and last row", marks=slow),
    ],
)
def test_a_run_that_was_interrupted_ends_like_one_that_was_left_alone(a_run, undisturbed, capsys, interruptions, said):
    run = a_run("interrupted")
    for interrupt in interruptions:
        interrupt(run)
    train(run)
    told = [line for line in capsys.readouterr().err.splitlines() if "damaged" in line]
    last = run.folder / "checkpoints" / "last.ckpt"
    assert bool(told) == bool(said)
    assert said.format(last=last) in "".join(told)
    for path in last.parent.glob("*.damaged"):
        path.unlink()
    for path in last.parent.glob("epoch=0-step=4.ckpt"):  # Lightning keeps the one that it has gone on from
        path.unlink()
    assert_same(undisturbed, run)


@pytest.mark.slow
def test_what_only_those_can_read_who_trust_it_is_named_and_kept_and_the_run_goes_on_for_them(a_run, undisturbed):
    run = a_run("out", "--trainer.callbacks+=test_run.Dated")
    killed_at(6)(run)
    before = {path: path.read_bytes() for path in run.folder.rglob("*.ckpt")}
    with pytest.raises(
        StructuredInitError, match=r"never run \(datetime.datetime\).*if you trust it, add --weights_only false"
    ):
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


def test_a_row_that_was_being_written_is_left_out(tmp_path):
    file = tmp_path / "metrics.csv"
    file.write_text("epoch,step,x\n0,3,0.5\n1,7,0.25\n1,1")
    assert [row["step"] for row in read_rows(file)] == ["3", "7"]
    assert read_rows(tmp_path / "none.csv") == []

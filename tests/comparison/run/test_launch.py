"""Where runs are trained: results are the same whatever the launcher, and a process that dies stops no other run."""

import csv
import json
import os
import signal
import sys

import pytest
import torch

from comparison.run import execute as executing
from comparison.run.arms import parse_arms
from comparison.run.launch import LocalLauncher, how_it_died, launch, visible_devices
from comparison.run.plan import Comparison
from comparison.run.run import train
from comparison.run.time_limit import DEADLINE, LEFT
from lightning_modules.cli import main
from structured_init import StructuredInitError

DDP = ["--trainer.strategy=ddp", "--trainer.devices=2", "--trainer.limit_train_batches=2"]


def of(folder, *arguments, seeds=(0, 1), inits="default,sincos"):
    """Runs of a few steps."""
    given = {"arguments": ["--trainer.max_epochs=2", *arguments], "added_callbacks": ["ElapsedTime"]}
    return Comparison(folder, ["tiny.yaml"], parse_arms(inits), seeds, **given).runs(identity="")


def trained(runs, launcher):
    """Train runs; give why some failed, by their names."""
    failed = {}

    def ended(run=None, reason=None):
        if reason:
            failed[run.name] = reason

    try:
        launch(runs, launcher, lambda run: None, ended)
    finally:
        launcher.close()
    return failed


def lasting(folder):
    """Everything a comparison's runs leave, without times and folders."""
    left = {}
    for path in sorted(folder.glob("runs/**/result.json")):
        result = {key: value for key, value in json.loads(path.read_text()).items() if key != "seconds"}
        with (path.parent / "metrics.csv").open() as file:
            rows = [{key: value for key, value in row.items() if key != "seconds"} for row in csv.DictReader(file)]
        maps = {each.name: each.read_bytes() for each in sorted(path.parent.glob("*/*.safetensors"))}
        state = torch.load(path.parent / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
        weights = {name: tensor.numpy().tobytes() for name, tensor in state.items()}
        left[str(path.parent.relative_to(folder))] = result, rows, maps, weights
    return left


@pytest.mark.slow
def test_one_process_two_and_ray_give_the_same_results_bit_for_bit(folder):
    ray = ["--launcher", "ray", "--cpus-per-run", "1"]
    for output, how in {"one": [], "two": ["--parallel", "2"], "ray": ray}.items():
        arguments = ["-c", "tiny.yaml", "--inits", "default,sincos", "--seeds", "0", "--trainer.max_epochs=2"]
        main(["compare", *arguments, *how, "--output", output])
    left = {output: lasting(folder / output) for output in ("one", "two", "ray")}
    assert len(left["one"]) == 2
    assert left["one"] == left["two"] == left["ray"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "seeds"),
    [(["--parallel", "2"], "0,1"), (["--launcher", "ray", "--cpus-per-run", "1"], "0")],
    ids=["local", "ray"],
)
def test_runs_elsewhere_stop_when_the_time_is_up_and_go_on_exactly(folder, how, seeds, monkeypatch):
    (folder / "hurry.py").write_text(
        "import os\nfrom pathlib import Path\nfrom lightning.pytorch import Callback\n\n\nclass Hurry(Callback):\n"
        "    def on_before_optimizer_step(self, trainer, *_):\n"
        f"        assert float(os.environ.get({DEADLINE!r}, 0)) > 1e9 or Path('calm').exists()\n"
        "        if trainer.global_step == 1 and not Path('calm').exists():\n"
        f"            os.environ[{DEADLINE!r}] = '0'\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    arguments = ["-c", "tiny.yaml", "--inits", "default", "--seeds", seeds, "--trainer.max_epochs=2"]
    command = ["compare", *arguments, "--trainer.callbacks+=hurry.Hurry", *how]
    with pytest.raises(SystemExit) as stop:
        main([*command, "--output", "out", "--time-limit", "2h"])
    assert stop.value.code == LEFT
    steps = [torch.load(path, weights_only=True)["global_step"] for path in folder.glob("out/runs/**/last.ckpt")]
    count = len(seeds.split(","))
    assert steps == [2] * count
    (folder / "calm").touch()
    main([*command, "--output", "out", "--time-limit", "2h"])
    main([*command, "--output", "undisturbed"])
    assert len(lasting(folder / "out")) == count
    assert lasting(folder / "out") == lasting(folder / "undisturbed")


@pytest.mark.slow
def test_the_number_of_threads_is_that_of_the_comparison(folder):
    runs = Comparison(folder / "out", ["tiny.yaml"], parse_arms("default"), [0], threads=2).runs(identity="")
    assert trained(runs, LocalLauncher(1, threads=2)) == {}
    assert runs[0].result["environment"]["threads"] == 2


@pytest.mark.slow
@pytest.mark.distributed
def test_a_run_may_have_several_processes_of_its_own(folder):
    runs = of(folder / "out", *DDP, seeds=[0])
    assert trained(runs, LocalLauncher(1, threads=1)) == {}
    for run in runs:
        assert run.result["steps"] == 4
        assert run.result["metrics"].keys() >= {"val/accuracy", "test/accuracy"}
        assert "2 processes" in run.beside("log").read_text()


@pytest.mark.slow
def test_a_run_that_fails_or_whose_process_dies_stops_no_other(folder, monkeypatch):
    (folder / "bad_luck.py").write_text(
        "import os\nfrom lightning.pytorch import Callback\n\n\nclass BadLuck(Callback):\n"
        "    def on_train_epoch_start(self, trainer, module):\n"
        "        seed = os.environ['PL_GLOBAL_SEED']\n"
        "        if seed == '0':\n            raise RuntimeError('no luck\\n  today')\n"
        "        if seed == '1':\n            os.kill(os.getpid(), 9)\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    runs = of(folder / "out", "--trainer.callbacks+=bad_luck.BadLuck", seeds=[0, 1, 2], inits="default")
    failed = trained(runs, LocalLauncher(1, threads=1))
    assert failed == {
        "default, seed 0": "RuntimeError: no luck today",
        "default, seed 1": "its process was ended by SIGKILL: the system kills what takes too much memory",
    }
    kept = json.loads(runs[0].failure_file.read_text())
    assert kept["reason"] == "RuntimeError: no luck today"
    assert "Traceback" in kept["traceback"]
    assert runs[1].failure_file.is_file()
    assert runs[2].complete


def test_what_a_run_prints_is_in_its_log_and_nowhere_else(folder, monkeypatch, capfd):
    (run, *_) = of(folder / "out")
    monkeypatch.setattr(executing, "train", lambda run: (os.write(1, b"heard\n"), os.write(2, b"and this\n")))
    assert executing.execute(run) is None
    assert run.beside("log").read_text() == "heard\nand this\n"
    assert capfd.readouterr() == ("", "")


def test_runs_start_in_order_as_places_become_free(folder):
    class Places:
        def __init__(self):
            self.running, self.most = [], 0

        def free(self):
            return len(self.running) < 2

        def start(self, run):
            self.running.append(run)
            self.most = max(self.most, len(self.running))

        def wait(self, seconds):
            return [(self.running.pop(0), None)]

    runs, places, order = of(folder / "out"), Places(), []
    launch(runs, places, order.append, lambda *_: None)
    assert order == runs
    assert places.most == 2


def test_a_process_that_is_gone_says_why():
    assert how_it_died(-signal.SIGTERM) == "its process was ended by SIGTERM"
    assert how_it_died(3).startswith("its process ended with exit code 3")


def test_devices_are_shared_out_among_those_that_may_be_used(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert visible_devices() == ["2", "3"]
    with pytest.raises(StructuredInitError, match=r"--gpus-per-run 0.5 for 1 runs at a time: this machine has"):
        LocalLauncher(1, threads=1, gpus=0.5)


def test_training_leaves_the_main_module_and_the_command_line_as_they_were(folder):
    (run, *_) = of(folder / "out", "--trainer.limit_train_batches=1", "--trainer.fast_dev_run=false")
    before = sys.modules["__main__"].__spec__, sys.argv
    train(run)
    assert (sys.modules["__main__"].__spec__, sys.argv) == before

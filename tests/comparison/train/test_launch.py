"""Where runs are trained: results are the same whatever the launcher, and a process that dies stops no other run."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from compared import Followed, Places, lasting
from filelock import FileLock

from comparison.plan.arms import parse_arms
from comparison.plan.comparison import Comparison
from comparison.train.launch import LocalLauncher, how_it_died, launch, visible_devices
from comparison.train.time_limit import LEFT
from lightning_modules.cli import main
from structured_init import StructuredInitError


def of(folder, *arguments, seeds=(0, 1), inits="default,sincos"):
    """Runs of a few steps."""
    given = {"arguments": ["--trainer.max_epochs=2", *arguments], "added_callbacks": ["ElapsedTime"]}
    return Comparison(folder=folder, experiment=["tiny.yaml"], arms=parse_arms(inits), seeds=seeds, **given).runs()


def trained(runs, launcher):
    """Train runs; give why some failed, by their names."""
    followed = Followed()
    try:
        launch(runs, launcher, followed)
    finally:
        launcher.close()
    return followed.failed


def left_by(folder):
    """Everything a comparison's runs leave, without times, folders and the checkpoints that a resumed one keeps."""
    left = {}
    for run in (path.parent for path in sorted(folder.glob("runs/**/result.json"))):
        state = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
        weights = {name: tensor.numpy().tobytes() for name, tensor in state.items()}
        left[str(run.relative_to(folder))] = {**lasting(run), "files": None, "weights": weights}
    return left


HURRY = """
from pathlib import Path
from lightning.pytorch import Callback
from callbacks import InitCallback
from comparison.train.time_limit import StopAtDeadline
from structured_init import Positions


class Hurry(Callback):
    def on_before_optimizer_step(self, trainer, *_):
        if Path("calm").exists():
            return
        (stop,) = (each for each in trainer.callbacks if isinstance(each, StopAtDeadline))
        assert stop.deadline > 1e9 or trainer.global_step > 1
        (init,) = (each for each in trainer.callbacks if isinstance(each, InitCallback))
        if trainer.global_step == 1 and isinstance(init.initializer, Positions):
            stop.deadline = 0.0
"""


@pytest.fixture(scope="module")
def compare_hurried(tmp_path_factory, tiny):
    """Compare two arms, of which the second finds that the time is up in its second step, unless it is to be calm."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("hurried"))
        Path("tiny.yaml").write_text(tiny)
        Path("hurry.py").write_text(HURRY)
        patch.setattr(sys, "path", [*sys.path, os.getcwd()])
        patch.setenv("PYTHONPATH", f"{os.getcwd()}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        experiment = ["-c", "tiny.yaml", "--trainer.max_epochs=2", "--trainer.callbacks+=hurry.Hurry"]

        def run(output, *how, calm):
            Path("calm").touch() if calm else Path("calm").unlink()
            main(["compare", *experiment, "--inits", "default,sincos", "--seeds", "0", "--output", output, *how])
            return Path(output)

        yield run


@pytest.fixture(scope="module")
def alone(compare_hurried):
    """What one process leaves that trains both arms, one after the other, to their end."""
    return left_by(compare_hurried("alone", calm=True))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["--parallel 2", "--launcher ray --cpus-per-run 1"], ids=["two processes", "Ray"])
def test_runs_elsewhere_are_the_same_bit_for_bit_those_as_well_that_stop_in_time_and_go_on(how, alone, compare_hurried):
    words = [*how.split(), "--time-limit", "2h"]
    with pytest.raises(SystemExit) as stop:
        compare_hurried(how, *words, calm=False)
    assert stop.value.code == LEFT
    folder = Path(how) / "runs"
    assert [path.parent.parent.name for path in folder.glob("**/result.json")] == ["default"]
    assert torch.load(folder / "sincos/seed_0/checkpoints/last.ckpt", weights_only=True)["global_step"] == 4
    compare_hurried(how, *words, calm=True)
    left = left_by(Path(how))
    assert len(left) == 2
    assert left == alone


@pytest.mark.slow
def test_the_number_of_threads_is_that_of_the_comparison(folder):
    short = [f"--trainer.limit_{part}_batches=1" for part in ("train", "val", "test")]
    given = {"folder": folder / "out", "experiment": ["tiny.yaml"], "arguments": short, "threads": 2}
    runs = Comparison(arms=parse_arms("default"), seeds=[0], **given).runs()
    assert trained(runs, LocalLauncher(1, threads=2)) == {}
    assert runs[0].latest().result["environment"]["threads"] == 2


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
        "default, seed 1": how_it_died(-signal.SIGKILL),
    }
    kept = json.loads(runs[0].failure_file.read_text())
    assert kept["reason"] == "RuntimeError: no luck today"
    assert "Traceback" in kept["traceback"]
    assert runs[1].failure_file.is_file()
    assert runs[2].complete


def test_what_a_run_prints_is_in_its_log_and_nowhere_else(tmp_path):
    code = (
        "import os, pathlib, sys\n"
        "from comparison.runs.folder import Run\n"
        "from comparison.train import run as running\n"
        "running.train = lambda *_: (os.write(1, b'heard\\n'), print('and this', file=sys.stderr))\n"
        "assert running.execute(Run('default', 0, (), None, pathlib.Path(sys.argv[1]))) is None\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "seed_0"], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert (tmp_path / "seed_0.log").read_text() == "heard\nand this\n"


def test_a_run_that_another_process_holds_is_left_to_it_and_is_taken_where_it_was_left(folder, monkeypatch):
    first, second = of(folder / "out", inits="default")
    places, followed = Places(), Followed()
    held = FileLock(first.folder.with_name(".seed_0.lock"))
    wait = places.wait

    def open_after_a_while(seconds):
        if places.now > 3:
            held.release(force=True)
        if places.running:
            return wait(seconds)
        places.now += seconds
        return []

    monkeypatch.setattr(places, "wait", open_after_a_while)
    first.folder.parent.mkdir(parents=True)
    with held:
        launch([first, second], places, followed)
    assert places.begun == followed.over == [second, first]


def test_what_other_processes_have_trained_is_not_trained_again(folder):
    first, second = of(folder / "out", inits="default")
    first.folder.mkdir(parents=True)
    first.write_result({"metrics": {}, "tested": True})
    second.write_failure("no luck")
    places, followed = Places(), Followed()
    launch([first, second], places, followed)
    assert (places.begun, followed.over, followed.failed) == ([], [first, second], {second.name: "no luck"})


@pytest.mark.skipif(sys.platform != "linux", reason="nothing is forked here")
def test_ctrl_c_while_the_first_process_begins_is_not_lost_and_does_not_reach_it(monkeypatch):
    def begin():
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])  # what a process that begins here inherits
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("multiprocessing.forkserver.ensure_running", begin)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            LocalLauncher(1, threads=1)
    finally:
        signal.signal(signal.SIGINT, handler)


def test_a_process_that_is_gone_says_why():
    assert how_it_died(-signal.SIGTERM) == "its process was ended by SIGTERM"
    assert "by SIGKILL, by somebody, a scheduler, or the system where memory ran" in how_it_died(-signal.SIGKILL)
    assert how_it_died(3).startswith("its process ended with exit code 3")


def test_devices_are_shared_out_among_those_that_may_be_used(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert visible_devices() == ["2", "3"]
    with pytest.raises(StructuredInitError, match=r"--gpus-per-run 0.5 for 1 runs at a time: this machine has"):
        LocalLauncher(1, threads=1, gpus=0.5)


def test_a_worker_on_a_full_disk_still_says_why_its_run_failed(tmp_path):
    code = (
        "import pathlib, resource, sys\n"
        "from comparison.runs.folder import Run\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # no file can grow\n"
        "run = Run('default', 0, (), None, pathlib.Path(sys.argv[1]))\n"
        "sys.exit(run.write_failure('No space left', 'Traceback …') != 'No space left')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "seed_0")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []

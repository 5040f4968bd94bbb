"""The command lines of docs/scaling.md start two processes that train like one another, whoever starts them.

On two CPU processes in place of GPUs, and on digits in place of CIFAR-10. SLURM itself is not here: what it tells its
tasks is.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
import warm_process

pytestmark = [pytest.mark.slow, pytest.mark.distributed]
PAGE = (Path(__file__).parent.parent / "docs" / "scaling.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent
ON_A_CPU = [
    *("--trainer.accelerator", "cpu", "--trainer.precision", "32-true", "--data.init_args.batch_size", "16"),
    *("--trainer.max_epochs", "1", "--trainer.limit_train_batches", "3", "--trainer.enable_progress_bar", "false"),
]


def command(start: str) -> list[str]:
    """Return the words of the page's command that starts so, with digits for data and two processes for many."""
    line = next(line for line in PAGE.replace("\\\n", " ").splitlines() if line.startswith(f"{start} "))
    words = shlex.split(line.replace("vit_cifar10", "vit_digits"))
    for option, value in (("--nnodes", "2"), ("--nproc-per-node", "1"), ("--trainer.num_nodes", "2")):
        if option in words:
            words[words.index(option) + 1] = value
    return [*words, *ON_A_CPU]


def run_all(commands: list[list[str]], environments: list[dict[str, str]], folder: Path) -> Path:
    """Run commands of the environment side by side, and return the one folder that they have written."""
    logs = [folder / f"{number}.log" for number in range(len(commands))]
    processes = [
        warm_process.start(
            BIN / program,
            [*words, "--trainer.default_root_dir", str(folder)],
            {"PATH": f"{BIN}:{os.environ['PATH']}", "GLOO_SOCKET_IFNAME": "lo", **environment},
            folder,
            log,
        )
        for (program, *words), environment, log in zip(commands, environments, logs, strict=True)
    ]
    warm_process.wait(processes, logs, 200)
    (written,) = (folder / "lightning_logs").iterdir()
    return written


@pytest.fixture(scope="module")
def by_lightning(tmp_path_factory):
    """The first command of the page: Lightning starts the second process itself."""
    words = [*command("structured-init fit"), "--trainer.devices", "2"]
    return run_all([words], [{}], tmp_path_factory.mktemp("lightning"))


def weights(written: Path) -> dict[str, torch.Tensor]:
    checkpoint = torch.load(written / "checkpoints" / "last.ckpt", weights_only=False)
    assert checkpoint["global_step"] == 3
    return checkpoint["state_dict"]


def assert_equal(found: Path, wanted: Path):
    ours, theirs = weights(found), weights(wanted)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert (found / "init_report.json").read_text() == (wanted / "init_report.json").read_text()


def test_two_nodes_under_torchrun_train_like_two_processes_of_one(by_lightning, tmp_path):
    words = [word.replace("HOST:29500", f"127.0.0.1:{warm_process.free_port()}") for word in command("torchrun")]
    assert "HOST" not in " ".join(words)
    assert_equal(run_all([[*words, "--trainer.devices", "1"]] * 2, [{}, {}], tmp_path), by_lightning)


def test_two_tasks_under_slurm_train_like_two_processes_of_one(by_lightning, tmp_path):
    script = re.search(r"```bash\n(.*?)```", PAGE, re.DOTALL)[1]
    assert {"--nodes=4", "--ntasks-per-node=8"} <= set(script.split())
    job = {"JOB_ID": "1", "JOB_NAME": "start", "NODELIST": "127.0.0.1", "NNODES": "2", "NTASKS": "2"}
    job |= {"NTASKS_PER_NODE": "1", "LOCALID": "0"}
    tasks = [{f"SLURM_{name}": value for name, value in (job | {"PROCID": n, "NODEID": n}).items()} for n in "01"]
    words = [*command("srun")[1:], "--trainer.devices", "1"]
    environment = {"MASTER_PORT": warm_process.free_port()}
    assert_equal(run_all([words] * 2, [task | environment for task in tasks], tmp_path), by_lightning)

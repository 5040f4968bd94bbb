"""Several commands train one comparison in one folder, as the array of jobs in the documentation does."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import structured_init

PAGE = Path(structured_init.__file__).parents[1] / "docs" / "compare_clusters.md"
COUNTED = """
from lightning.pytorch import Callback


class Counted(Callback):
    def on_fit_start(self, trainer, module):
        with open("begun.txt", "a") as file:
            file.write(f"{trainer.log_dir}\\n")
"""
COMMAND = f"""#!/bin/sh
exec {sys.executable} -c 'import sys; from lightning_modules.cli import main; main(sys.argv[1:])' "$@" \\
    --trainer.callbacks+=counted.Counted --trainer.limit_train_batches=2
"""
SMALLER = {"vit_cifar10_short --inits default,sincos,mimetic": "tiny.yaml --inits default,sincos", "0-9": "0,1"}


@pytest.mark.slow
def test_the_jobs_of_an_array_train_each_run_once(folder):
    script = re.search(r"```bash\n(#!/bin/bash.*?)```", PAGE.read_text(), flags=re.DOTALL)[1]
    for text, smaller in {**SMALLER, "--parallel 8": "--parallel 1"}.items():
        assert text in script
        script = script.replace(text, smaller)
    (folder / "counted.py").write_text(COUNTED)
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "activate").write_text(f"export PATH={folder / '.venv' / 'bin'}:$PATH\n")
    command = folder / ".venv" / "bin" / "structured-init"
    command.write_text(COMMAND)
    command.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{PAGE.parents[1]}", "SLURM_JOB_ID": "1"}
    given = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    jobs = [subprocess.Popen(["bash", "-c", script], **given) for _ in range(2)]
    said = [job.communicate()[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], said
    begun = (folder / "begun.txt").read_text().split()
    out = folder / "runs" / "vit_cifar10_short"
    assert sorted(begun) == [
        str(out / "runs" / arm / f"seed_{seed}") for arm in ("default", "sincos") for seed in (0, 1)
    ]
    assert all("report: runs/vit_cifar10_short/report.html" in text for text in said)

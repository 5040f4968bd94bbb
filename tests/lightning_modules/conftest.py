from __future__ import annotations

import pytest

from lightning_modules.cli import main

TINY = """
model:
  class_path: ImageClassifier
  init_args:
    network: vit_nano_patch2_8
    network_args: {embed_dim: 16, num_heads: 2, depth: 2}
data:
  class_path: ImageData
  init_args: {name: digits, batch_size: 32, fraction: 0.1, test_fraction: 0.2}
trainer:
  accelerator: cpu
  max_epochs: 1
  enable_progress_bar: false
  enable_model_summary: false
  log_every_n_steps: 1
attention:
  samples: 2
  figures: false
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to work in, with one small experiment, ``tiny.yaml``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    return tmp_path


@pytest.fixture
def cli(folder):
    """Run a command of ``structured-init`` in process on the small experiment."""

    def run(command, *arguments):
        return main([command, "-c", "tiny.yaml", *arguments])

    return run


@pytest.fixture
def complaint(capsys):
    """Run something that must end with exit code 2; give the one line that it says."""

    def read(run, *arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            run(*arguments)
        assert stop.value.code == 2
        said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("structured-init:")]
        assert len(said) == 1
        return said[0].removeprefix("structured-init: error: ")

    return read

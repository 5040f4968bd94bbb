"""What every test file shares: one thread per process, no network, and small models."""

from __future__ import annotations

import json
import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; processes that tests start inherit it
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from pathlib import Path

import jaxtyping
import pytest
import torch
from hypothesis import settings

from lightning_modules.cli import main

sys.path.append(str(Path(__file__).parent))
import warm_process

torch.set_num_threads(1)
settings.register_profile(
    "steady", deadline=None, derandomize=True
)  # the same examples each time, on a busy machine too
settings.load_profile("steady")
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
SCREEN = 40  # lines
TIME_LIMIT = 240  # seconds; a rank that waits for one that has failed would wait for half an hour


def pytest_collection_modifyitems(items):
    """Put files with long tests first, so that no process of xdist has a long one left at the end."""
    long = {item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("distributed")}
    items.sort(key=lambda item: item.path not in long)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Show a failure on one screen: where it began, and what was expected and came. `--tb=long` shows all of it."""
    report = yield
    lines = str(report.longrepr).splitlines() if report.failed else []
    if len(lines) > SCREEN and item.config.option.tbstyle == "short":
        begin, end = SCREEN // 4, SCREEN - SCREEN // 4
        report.longrepr = "\n".join([*lines[:begin], "        ...", *lines[-end:]])
    return report


@pytest.fixture
def tiny_vit():
    """A factory of timm vision transformers: 8×8 pixels, patch 2, 4×4 tokens, width 16, 2 heads, 2 layers."""
    from timm.models.vision_transformer import VisionTransformer

    def build(seed=0, **changes):
        arguments = {"img_size": 8, "patch_size": 2, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 5}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return VisionTransformer(**{**arguments, **changes})

    return build


@pytest.fixture
def as_installed():
    """Switch the tests' type checker off, to see what a user sees who passes a wrong value."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def two_processes(request, tmp_path_factory):
    """Run the test's own file as a script in two processes; give what each rank has written to ``<rank>.json``."""
    folder = tmp_path_factory.mktemp("two_processes")
    ranks, logs = warm_process.start_ranks(request.path, [str(folder)], {}, folder)
    warm_process.wait(ranks, logs, TIME_LIMIT)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="session")
def tiny():
    """The text of ``tiny.yaml``, for fixtures that several tests share."""
    return TINY


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

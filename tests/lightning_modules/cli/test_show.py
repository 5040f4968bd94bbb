from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from lightning_modules.cli import main
from structured_init import attention_sites


class Shown(NamedTuple):
    """What ``show`` has made of ``init/mimetic``."""

    model: Any
    folder: Path
    out: str


@pytest.fixture(scope="module")
def shown(tmp_path_factory, tiny):
    """One call of ``show``, which the tests below read."""
    folder, out = tmp_path_factory.mktemp("shown"), io.StringIO()
    (folder / "tiny.yaml").write_text(tiny)
    given = ["-c", "tiny.yaml", "-c", "init/mimetic", "--seed_everything=5", "--export", "start.safetensors"]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.chdir(folder)
        run = main(["show", *given, "--output", "seen"])
    return Shown(run.model, folder, out.getvalue())


def test_show_applies_the_start_reports_and_draws_it(shown):
    assert {path.name for path in (shown.folder / "seen").iterdir()} == {
        "attention.png", "init_report.json", "weight_products.png"
    }  # fmt: skip
    assert "Mimetic: query_key" in shown.out
    products = torch.cat([site.query @ site.key.mT for site in attention_sites(shown.model)])
    assert products.diagonal(dim1=-2, dim2=-1).mean() > 0.3


def test_show_measures_on_the_images_that_a_training_measures_on(cli, folder):
    given = ["-c", "init/patch_whitening", "--init.samples=20", "--attention.enabled=false"]
    cli("show", *given, "--output", "seen")
    cli("fit", *given, "--trainer.default_root_dir", "run", "--trainer.max_steps=1", "--trainer.limit_val_batches=1")
    (trained,) = (folder / "run").rglob("init_report.json")
    assert entries(folder / "seen" / "init_report.json") == entries(trained)
    assert not (folder / "seen" / "attention.png").exists()


def entries(report):
    found = json.loads(report.read_text())["entries"]
    return {each["names"][0]: each["after"] for each in found if each["set_by"]}


def test_a_layer_that_is_not_there_is_named(cli, complaint):
    typo = ["--output", "typo", "--attention.layers", '["*.block.0.attn"]']
    assert "no attention layer matches '*.block.0.attn'" in complaint(cli, "show", *typo)


OWN = """
from collections import namedtuple

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from strangers import Apart
from torch.utils.data import DataLoader


class Tile(LightningModule):
    def __init__(self):
        super().__init__()
        self.patch, self.attend = torch.nn.Conv2d(1, 12, 2, 2), Apart()

    def forward(self, images):
        return self.attend(self.patch(images).flatten(2).mT).mean(1)


SAMPLES = [namedtuple("Sample", "image label")(torch.randn(1, 8, 8), label) for label in range(4)]


class TrainingAlone(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(SAMPLES, 2)


class WithLoaders(Tile):
    train_dataloader = TrainingAlone.train_dataloader


class Late(LightningModule):
    def configure_model(self):
        self.network = Tile()

    def forward(self, images):
        return self.network(images)
"""


@pytest.mark.parametrize(
    ("model", "data"),
    [("Tile", "TrainingAlone"), ("Late", "TrainingAlone"), ("WithLoaders", None)],
)
def test_attention_is_found_and_drawn_however_a_module_gets_its_data(folder, monkeypatch, model, data):
    monkeypatch.syspath_prepend(folder)
    name = f"tile_{model}_{data}".lower()  # imported once for each name
    (folder / f"{name}.py").write_text(OWN)
    (folder / "own.yaml").write_text(f"model: {name}.{model}\n" + (f"data: {name}.{data}\n" if data else ""))
    main(["show", "own.yaml", "mimetic{query_key=false,positions=keep}", "--output", "seen"])
    assert (folder / "seen" / "attention.png").exists()


def test_show_gives_the_weights_that_a_fit_starts_with(shown, cli, capsys):
    given = ["-c", "init/mimetic", "--seed_everything=5", "--attention.enabled=false"]
    still = [f"--model.{rate}=0.0" for rate in ("optimizer.lr", "warmup_lr", "min_lr")]
    run = cli("fit", *given, *still, "--trainer.max_steps=1", "--trainer.limit_val_batches=1")
    fitted = run.model.state_dict()
    for name, value in shown.model.state_dict().items():
        assert torch.equal(value, fitted[name]), name
    capsys.readouterr()
    main(["show", f"{run.trainer.log_dir}/experiment.yaml", "--plan"])  # by what the run has written
    assert "Mimetic" in capsys.readouterr().out


def test_a_plan_lists_what_would_be_done_and_touches_nothing(cli, folder, capsys):
    planned = cli("show", "-c", "init/mimetic", "--plan").model
    assert "Mimetic: value_output" in capsys.readouterr().out
    assert {path.name for path in folder.iterdir()} == {"tiny.yaml"}
    untouched = cli("show", "-c", "init/default", "--plan").model
    assert all(torch.equal(a, b) for a, b in zip(planned.parameters(), untouched.parameters(), strict=True))


def test_exported_weights_stand_beside_the_start(shown, cli, folder):
    cli("show", "--checkpoint", str(shown.folder / "start.safetensors"), "--output", "both")
    pictures = [(place / "attention.png").read_bytes() for place in (shown.folder / "seen", folder / "both")]
    alone, both = (int.from_bytes(png[16:20], "big") for png in pictures)  # the width in a PNG's header
    assert alone < both


def test_depthwise_filters_are_shown_as_built_and_as_started(cli, folder):
    network = ("--model.network=convmixer_8_2_k3_p2", "--model.network_args=null")
    cli("show", "-c", "init/covariance", *network, "--output", "seen")
    drawn = {path.name for path in (folder / "seen").glob("*.png")}
    assert drawn == {"covariances.png", "filters.png", "variances.png"}

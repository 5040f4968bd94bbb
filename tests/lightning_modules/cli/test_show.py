from __future__ import annotations

import json

import pytest
import timm
import torch
from lightning.pytorch import LightningModule
from safetensors.torch import load_file
from torch.utils.data import DataLoader

import callbacks.attention_map
import callbacks.figures
import lightning_modules.cli.show
from lightning_modules.cli import main
from lightning_modules.cli.show import some_samples
from lightning_modules.networks import create_network
from structured_init import StructuredInitError, attention_sites


def test_show_applies_the_start_reports_and_draws_it(cli, folder, capsys):
    run = cli("show", "-c", "init/mimetic", "--output", "seen")
    assert {path.name for path in (folder / "seen").iterdir()} == {
        "attention.png", "init_report.json", "weight_products.png"
    }  # fmt: skip
    assert "Mimetic: query_key" in capsys.readouterr().out
    products = torch.cat([site.query @ site.key.mT for site in attention_sites(run.model)])
    assert products.diagonal(dim1=-2, dim2=-1).mean() > 0.3


@pytest.mark.parametrize(
    ("name", "option"), [("patch_whitening", "samples=20"), ("self_pretraining", "initializer.iterations=2")]
)
def test_show_measures_on_the_images_that_a_training_measures_on(cli, folder, name, option):
    given = ["-c", f"init/{name}", f"--init.{option}"]
    cli("show", *given, "--output", "seen")
    cli("audit", *given)
    cli("fit", *given, "--trainer.default_root_dir", "run")
    (trained,) = (folder / "run").rglob("init_report.json")
    assert entries(folder / "seen" / "init_report.json") == entries(trained)


def test_show_draws_the_attention_on_the_samples_that_a_training_captures(cli, monkeypatch):
    shown, captured = [], []
    view, probe = lightning_modules.cli.show._view, callbacks.attention_map.probe_batch

    def watched(*args):
        captured.append(probe(*args))
        return captured[-1]

    monkeypatch.setattr(lightning_modules.cli.show, "_view", lambda *args: shown.append(args[1]) or view(*args))
    monkeypatch.setattr(callbacks.attention_map, "probe_batch", watched)
    cli("show", "-c", "init/mimetic", "--output", "seen")
    cli("fit", "-c", "init/mimetic", "--trainer.default_root_dir", "run", "--attention.enabled", "true")
    assert torch.equal(shown[0], captured[0].inputs[0])


def test_loaders_without_samples_by_number_give_their_first_batch():
    class Keys(dict):  # which a sampler names
        __getitem__ = dict.__getitem__

    numbers = torch.arange(24.0).view(3, 8)
    keys = Keys({f"{n}": each for n, each in enumerate(numbers)})
    taken = lightning_modules.cli.show._captured
    assert torch.equal(taken(DataLoader(list(numbers), batch_size=None), 8, 0), numbers[0])
    assert torch.equal(taken(DataLoader(keys, 2, sampler=list(keys)), 8, 0), numbers[:2])
    assert torch.equal(taken(iter(numbers), 8, 0), numbers[0])
    assert taken(DataLoader(numbers, batch_sampler=[[0, 1], [2]]), None, 0).shape == (2, 8)


def entries(report):
    found = json.loads(report.read_text())["entries"]
    return {each["names"][0]: (each["after"], each["changed"]) for each in found if each["set_by"]}


def test_show_draws_the_attention_that_its_section_asks_for(cli, complaint, folder):
    for place, options in {"all": [], "one": ["--attention.layers", '["*.blocks.0.attn"]']}.items():
        cli("show", "-c", "init/mimetic", "--output", place, *options)
    pictures = [(folder / place / "attention.png").read_bytes() for place in ("all", "one")]
    assert pictures[0] != pictures[1]
    assert "no attention layer matches '*.block.0.attn'" in complaint(
        cli, "show", "-c", "init/mimetic", "--output", "typo", "--attention.layers", '["*.block.0.attn"]'
    )
    cli("show", "-c", "init/mimetic", "--output", "none", "--attention.enabled", "false")
    assert not (folder / "none" / "attention.png").exists()


OWN = """
import torch
from lightning.pytorch import LightningModule
from torch import nn


class Tile(LightningModule):
    def __init__(self, takes_pairs: bool = False):
        super().__init__()
        self.takes_pairs = takes_pairs
        self.patch, self.qkv, self.out = nn.Conv2d(1, 16, 2, 2), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, images, labels=None):
        if self.takes_pairs and labels is None:
            raise ValueError("no labels were given")
        tokens = self.patch(images).flatten(2).mT
        q, k, v = self.qkv(tokens).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        attention = (q @ k.mT / 8**0.5).softmax(-1)
        return self.out((attention @ v).transpose(1, 2).flatten(2)).mean(1)
"""


def test_attention_of_a_plain_module_of_ones_own_is_found_and_drawn(folder, capsys, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    (folder / "tile.py").write_text(OWN)
    data = "data: {class_path: ImageData, init_args: {name: digits}}"
    for pairs, pictures in (("false", {"attention.png", "weight_products.png"}), ("true", set())):
        (folder / "own.yaml").write_text(
            f"model: {{class_path: tile.Tile, init_args: {{takes_pairs: {pairs}}}}}\n{data}\n"
        )
        main(["show", "own.yaml", "kaiming_uniform", "--output", pairs, "--no-open"])
        assert {path.name for path in (folder / pairs).iterdir()} == {"init_report.json", *pictures}
    said = capsys.readouterr().out
    assert "no attention is drawn: the first part of a batch is not what the module takes: no labels were given" in said


@pytest.mark.parametrize("pairs", ["false", "true"])
def test_without_data_the_weights_of_an_own_attention_are_drawn_or_it_is_said_what_was_tried(
    folder, capsys, complaint, monkeypatch, pairs
):
    monkeypatch.syspath_prepend(folder)
    (folder / "tile_alone.py").write_text(OWN)
    network = f"{{class_path: tile_alone.Tile, init_args: {{takes_pairs: {pairs}}}}}"
    (folder / "own.yaml").write_text(f"model: {{class_path: ImageClassifier, init_args: {{network: {network}}}}}\n")
    command = ["show", "own.yaml", "mimetic_host", "--output", "seen", "--no-open"]
    if pairs == "true":
        why = "; ImageClassifier fails on the host's own example, torch.randn(2, 1, 32, 32): no labels were given"
        assert f"no datamodule to take them from{why}" in complaint(main, command)
        return
    main(command)
    assert {path.name for path in (folder / "seen").iterdir()} == {"init_report.json", "weight_products.png"}
    assert "no attention is drawn: there are no samples; give" in capsys.readouterr().out


SEVERAL = """
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader


class Several(LightningDataModule):
    def __init__(self, combined: bool = False):
        super().__init__()
        self.combined = combined

    def train_dataloader(self):
        loaders = {name: DataLoader(torch.randn(4, 1, 8, 8), 2) for name in ("labeled", "free")}
        return CombinedLoader(loaders) if self.combined else loaders
"""


@pytest.mark.parametrize("combined", ["false", "true"])
def test_a_datamodule_may_have_several_training_loaders(folder, capsys, monkeypatch, combined):
    monkeypatch.syspath_prepend(folder)
    (folder / "tiles.py").write_text(OWN + SEVERAL)
    (folder / "own.yaml").write_text(
        f"model: tiles.Tile\ndata: {{class_path: tiles.Several, init_args: {{combined: {combined}}}}}\n"
        "init: {initializer: {class_path: Mimetic, init_args: {positions: keep}}}\n"
    )
    main(["show", "-c", "own.yaml", "--plan"])
    assert "Mimetic: value_output" in capsys.readouterr().out


LOADERS = """
from collections import namedtuple

from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, IterableDataset

SAMPLES = [namedtuple("Sample", "image label")(torch.randn(1, 8, 8), label) for label in range(4)]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(SAMPLES)


class TrainingAlone(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(SAMPLES, 2)


class Streamed(TrainingAlone):
    def val_dataloader(self):
        return DataLoader(Stream(), 2)


class Several(TrainingAlone):
    def val_dataloader(self):
        return [DataLoader(SAMPLES, 2), DataLoader(SAMPLES, 2)]


class WithLoaders(Tile):
    train_dataloader = TrainingAlone.train_dataloader


class InSetup(LightningModule):
    train_dataloader = TrainingAlone.train_dataloader

    def setup(self, stage):
        self.network = Tile()

    def forward(self, images):
        return self.network(images)


class NeedsTrainer(WithLoaders):
    def setup(self, stage):
        self.steps = self.trainer.estimated_stepping_batches


class NeedsFile(Tile):
    def train_dataloader(self):
        return DataLoader(torch.load("nowhere.pt"), 2)


class OfParts(WithLoaders):
    def probe_inputs(self, batch):
        return batch["labeled"][0]


class OneBatch(Tile):
    def forward(self, batch):
        return super().forward(batch.image)

    def probe_inputs(self, batch):
        return (batch,)


class Late(LightningModule):
    def configure_model(self):
        self.network = Tile()

    def forward(self, images):
        return self.network(images)
"""


@pytest.mark.parametrize(
    ("model", "data"),
    [
        ("Tile", "TrainingAlone"),
        ("Tile", "Streamed"),
        ("Tile", "Several"),
        ("OneBatch", "TrainingAlone"),
        ("Late", "TrainingAlone"),
        ("WithLoaders", None),
        ("InSetup", None),
    ],
)
def test_attention_is_found_and_drawn_however_a_module_gets_its_data(folder, monkeypatch, model, data):
    monkeypatch.syspath_prepend(folder)
    name = f"tile_{model}_{data}".lower()  # imported once for each name
    (folder / f"{name}.py").write_text(OWN + LOADERS)
    (folder / "own.yaml").write_text(f"model: {name}.{model}\n" + (f"data: {name}.{data}\n" if data else ""))
    main(["show", "own.yaml", "value_output", "--plan"])
    main(["show", "own.yaml", "value_output", "--output", "seen", "--no-open"])
    assert (folder / "seen" / "attention.png").exists()


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("NeedsTrainer", "the data of NeedsTrainer cannot be read here: NeedsTrainer is not attached to a `Trainer`."),
        ("NeedsFile", "the data of NeedsFile cannot be read here: [Errno 2] No such file or directory: 'nowhere.pt'"),
        ("OfParts", "OfParts.probe_inputs fails on a batch, Sample: TypeError("),
    ],
)
def test_where_a_module_s_own_data_cannot_be_read_the_rest_is_shown(folder, capsys, complaint, monkeypatch, model, why):
    monkeypatch.syspath_prepend(folder)
    name = f"tile_{model}".lower()
    (folder / f"{name}.py").write_text(OWN + LOADERS)
    (folder / "own.yaml").write_text(f"model: {name}.{model}\n")
    main(["show", "own.yaml", "kaiming_uniform", "--output", "seen", "--no-open"])
    assert f"no attention is drawn: {why}" in capsys.readouterr().out
    assert (folder / "seen" / "init_report.json").exists()
    main(["audit", "own.yaml"])
    assert f"activations and gradients are left out: {why}" in capsys.readouterr().out
    assert why in complaint(main, ["show", "own.yaml", "mimetic_host", "--plan"])  # which searches for attention


@pytest.mark.parametrize("model", ["WithLoaders", "Late", "InSetup"])
def test_a_list_for_a_module_builds_it_and_reads_its_data_as_show_does(folder, capsys, monkeypatch, model):
    monkeypatch.syspath_prepend(folder)
    name = f"tile_list_{model}".lower()
    (folder / f"{name}.py").write_text(OWN + LOADERS)
    data = f"data: {name}.TrainingAlone\n" if model == "Late" else ""
    (folder / "own.yaml").write_text(f"model: {name}.{model}\n{data}")
    main(["list", "--for", "own.yaml", "--json"])
    why = {row["name"]: row["why"] for row in json.loads(capsys.readouterr().out)}
    assert why["value_output"] == ""  # whose layer is found by running it
    assert not any("no datamodule" in each for each in why.values())


def test_samples_that_an_initializer_asks_for_are_not_said_to_be_for_attention():
    with pytest.raises(StructuredInitError, match=r"^samples are needed, and there is no datamodule"):
        some_samples(LightningModule(), None)


def test_show_gives_the_weights_that_a_fit_starts_with(cli, capsys):
    shown = cli("show", "-c", "init/mimetic", "--seed_everything=5", "--output", "seen").model
    run = cli("fit", "-c", "init/mimetic", "--seed_everything=5", "--model.optimizer.lr=0.0",
              "--model.warmup_lr=0.0", "--model.min_lr=0.0")  # fmt: skip
    fitted = run.model
    for name, value in shown.state_dict().items():
        assert torch.equal(value, fitted.state_dict()[name]), name
    capsys.readouterr()
    for command in (["show", "--plan"], ["audit"]):  # by what the run has written
        main([command[0], f"{run.trainer.log_dir}/experiment.yaml", *command[1:]])
        assert "Mimetic" in capsys.readouterr().out or command == ["audit"]


def test_a_plan_lists_what_would_be_done_and_touches_nothing(cli, folder, capsys):
    planned = cli("show", "-c", "init/mimetic", "--plan").model
    assert "Mimetic: value_output" in capsys.readouterr().out
    assert {path.name for path in folder.iterdir()} == {"tiny.yaml"}
    untouched = cli("show", "-c", "init/default", "--plan").model
    assert all(torch.equal(a, b) for a, b in zip(planned.parameters(), untouched.parameters(), strict=True))


def test_exported_weights_load_into_the_bare_network(cli, folder):
    model = cli("show", "-c", "init/mimetic", "--export", "start.safetensors", "--output", "seen").model
    network = create_network("vit_nano_patch2_8", image_size=8, in_channels=1, embed_dim=16, num_heads=2, depth=2)
    network.load_state_dict(load_file(folder / "start.safetensors"))
    images = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(network.eval()(images), model.network.eval()(images))


def test_a_checkpoint_and_exported_weights_stand_beside_the_start(cli, folder):
    last = f"{cli('fit').trainer.log_dir}/checkpoints/last.ckpt"
    cli("show", "--export", "start.safetensors", "--output", "alone")
    for other in (last, "start.safetensors"):
        cli("show", "--checkpoint", other, "--output", "both")
        alone, both = ((folder / name / "attention.png").read_bytes() for name in ("alone", "both"))
        widths = [int.from_bytes(png[16:20], "big") for png in (alone, both)]  # a PNG's header
        assert widths[0] < widths[1]


def test_the_products_of_a_pretrained_model_stand_beside_the_start(cli, monkeypatch):
    build, draw, drawn = timm.create_model, callbacks.figures.product_figure, {}

    def without_a_download(name, pretrained=False, **arguments):
        assert pretrained
        return build(name, img_size=32, depth=3, **arguments)

    def watched(products, **options):
        drawn.update(products)
        return draw(products, **options)

    monkeypatch.setattr(timm, "create_model", without_a_download)
    monkeypatch.setattr(callbacks.figures, "product_figure", watched)
    cli("show", "-c", "init/mimetic", "--pretrained", "vit_tiny_patch16_224", "--output", "seen")
    assert list(drawn) == ["as built", "KaimingUniform + Mimetic", "vit_tiny_patch16_224"]
    assert list(drawn["vit_tiny_patch16_224"]) == [f"blocks.{i}.attn" for i in range(3)]


def test_a_network_without_attention_is_shown_by_its_filters(cli, folder, monkeypatch):
    drawn, draw = {}, callbacks.figures.filter_figure
    monkeypatch.setattr(callbacks.figures, "filter_figure", lambda seen: drawn.update(seen) or draw(seen))
    cli("show", "-c", "init/delta_orthogonal", "--model.network=resnet10t", "--model.network_args={in_chans: 1}",
        "--output", "seen")  # fmt: skip
    assert {path.name for path in (folder / "seen").glob("*.png")} == {
        "covariances.png",
        "filters.png",
        "variances.png",
    }
    built, orthogonal = (filters["network.layer1.0.conv2"] for filters in drawn.values())
    assert built[:, 0, 0].all()
    assert not orthogonal[:, 0, 0].any()


def test_depthwise_filters_are_shown_as_built_and_as_started(cli, folder):
    cli("show", "-c", "init/covariance", "--model.network=convmixer_8_2_k3_p2", "--model.network_args=null",
        "--output", "seen")  # fmt: skip
    drawn = {path.name for path in (folder / "seen").glob("*.png")}
    assert drawn == {"covariances.png", "filters.png", "variances.png"}


def test_implicit_attention_of_state_spaces_is_drawn_beside_their_half_lives(folder):
    sizes = "{hidden_size: 16, num_hidden_layers: 2, state_size: 4, head_dim: 8}"
    given = [f"--model.network_args={sizes}", "--data.num_workers=0", "--data.train_examples=50", "--output=seen"]
    main(["show", "mamba2_copying", "mimetic_state_space", *given])
    drawn = {path.name for path in (folder / "seen").glob("*.png")}
    assert drawn >= {"attention.png", "half_lives.png"}


def test_what_cannot_be_shown_is_answered_in_one_line(cli, complaint):
    assert complaint(cli, "show", "--export", "w.pt") == "--export writes safetensors: name the file 'w.safetensors'"
    assert complaint(cli, "show", "--checkpoint", "no.safetensors") == "--checkpoint: there is no file 'no.safetensors'"
    assert complaint(cli, "show", "--pretrained", "vit_tiny_patch16_225") == (
        "unknown pretrained model 'vit_tiny_patch16_225': did you mean 'vit_tiny_patch16_224'?"
    )

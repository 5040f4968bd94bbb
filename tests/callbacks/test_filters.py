import json
import logging
from pathlib import Path

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from safetensors.torch import load_file
from timm.models.convmixer import ConvMixer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from callbacks import FilterCallback
from callbacks.filters import described
from structured_init.analysis.filters import FILTER_STATISTICS, empirical_covariance
from structured_init.errors import StructuredInitError

pytestmark = [
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step`"),
]
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
LAYERS = ["network.blocks.0.0.fn.0", "network.blocks.1.0.fn.0"]


class Classifier(L.LightningModule):
    def __init__(self, network: nn.Module | None = None):
        super().__init__()
        self.network = network or ConvMixer(6, 2, kernel_size=3, patch_size=2, num_classes=3, drop_rate=0.2)

    def forward(self, images):
        return self.network(images)

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-2)


def fit(folder, callback=None, module=None, ckpt_path=None, **options):
    L.seed_everything(0, verbose=False)
    module = module or Classifier()
    trainer = L.Trainer(
        accelerator="cpu",
        default_root_dir=folder,
        callbacks=[callback] if callback else [],
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"max_epochs": 2, "logger": CSVLogger(folder), "log_every_n_steps": 1} | options,
    )
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(16, 3, 8, 8, generator=generator), torch.arange(16) % 3)
    loader = DataLoader(data, 8, shuffle=True)
    trainer.fit(module, loader, ckpt_path=ckpt_path, weights_only=True if ckpt_path else None)
    return trainer, module


def folder_of(trainer) -> Path:
    return Path(trainer.log_dir) / "filters"


def test_filters_before_and_after_training_are_kept_described_and_drawn(tmp_path):
    module = Classifier()
    start = {name: module.get_submodule(name).weight.detach().clone() for name in LAYERS}
    trainer, _ = fit(tmp_path, FilterCallback(), module)
    before, after = (load_file(folder_of(trainer) / f"{phase}.safetensors") for phase in ("before", "after"))
    assert list(before) == list(after) == LAYERS
    for name in LAYERS:
        assert torch.equal(before[name], start[name][:, 0])
        assert torch.equal(after[name], module.get_submodule(name).weight[:, 0])
        assert not torch.equal(before[name], after[name])
    numbers = json.loads((folder_of(trainer) / "statistics.json").read_text())
    assert set(numbers) == {"before", "after", "change"}
    assert set(numbers["after"][LAYERS[1]]) == set(FILTER_STATISTICS)
    trace = empirical_covariance(after[LAYERS[0]], centred=False).trace().item()
    assert numbers["after"][LAYERS[0]]["energy"] == pytest.approx(trace)
    moved = (after[LAYERS[0]] - before[LAYERS[0]]).norm() / before[LAYERS[0]].norm()
    assert numbers["change"][LAYERS[0]]["relative_change"] == pytest.approx(moved.item(), rel=1e-5)
    drawn = {path.name for path in folder_of(trainer).glob("*.png")}
    assert drawn == {"covariances.png", "filters.png", "variances.png"}


def test_training_is_bit_identical_with_and_without_the_callback(tmp_path):
    _, plain = fit(tmp_path / "plain")
    _, looked_at = fit(tmp_path / "looked_at", FilterCallback())
    for name, value in plain.state_dict().items():
        assert torch.equal(value, looked_at.state_dict()[name]), name


def test_frozen_filters_are_the_same_before_and_after(tmp_path):
    module = Classifier()
    for name in LAYERS:
        module.get_submodule(name).requires_grad_(False)
    trainer, _ = fit(tmp_path, FilterCallback(figures=False), module)
    numbers = json.loads((folder_of(trainer) / "statistics.json").read_text())
    for row in numbers["change"].values():
        assert (row["relative_change"], row["covariance_similarity"]) == pytest.approx((0, 1))
    assert not list(folder_of(trainer).glob("*.png"))


def test_a_resumed_run_compares_with_the_start_of_the_first(tmp_path):
    first, _ = fit(tmp_path, FilterCallback())
    original = (folder_of(first) / "before.safetensors").read_bytes()
    callback = FilterCallback()
    second, _ = fit(tmp_path, callback, max_epochs=3, ckpt_path=first.checkpoint_callback.best_model_path)
    assert second.log_dir != first.log_dir
    assert callback.before == str((folder_of(first) / "before.safetensors").absolute())
    assert load_file(folder_of(second) / "before.safetensors").keys() == set(LAYERS)
    assert (folder_of(first) / "before.safetensors").read_bytes() == original
    numbers = json.loads((folder_of(second) / "statistics.json").read_text())
    assert set(numbers) == {"before", "after", "change"}


def test_a_resumed_run_without_a_before_has_only_after(tmp_path):
    first, _ = fit(tmp_path)
    second, _ = fit(tmp_path, FilterCallback(), max_epochs=3, ckpt_path=first.checkpoint_callback.best_model_path)
    assert {path.name for path in folder_of(second).glob("*.safetensors")} == {"after.safetensors"}
    assert set(json.loads((folder_of(second) / "statistics.json").read_text())) == {"after"}


@pytest.mark.parametrize("enabled", [True, False])
def test_nothing_is_written_without_depthwise_convolutions_or_when_switched_off(tmp_path, enabled):
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    trainer, _ = fit(tmp_path, FilterCallback(enabled=enabled), Classifier(plain if enabled else None))
    assert not folder_of(trainer).exists()


def test_filters_that_cannot_be_written_end_the_run_in_one_line(tmp_path):
    (tmp_path / "filters").write_text("in the way")
    with pytest.raises(StructuredInitError, match=r"cannot write '.*before\.safetensors'"):
        fit(tmp_path, FilterCallback(), logger=False)


class Board:
    def __init__(self):
        self.shown = []

    def add_figure(self, name, figure, global_step):
        self.shown.append((name, global_step))


def test_tensorboard_gets_the_figures(tmp_path):
    class Logger(CSVLogger):
        board = Board()

        @property
        def experiment(self):
            self.board.__dict__.update(log_metrics=lambda *_: None, save=lambda: None, log_hparams=lambda *_: None)
            return self.board

    logger = Logger(tmp_path)
    fit(tmp_path, FilterCallback(), logger=logger, max_epochs=1)
    assert logger.board.shown == [(f"filters/{name}", 2) for name in ("covariances", "filters", "variances")]


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_statistics_of_filters_that_diverged_are_null_which_json_has(value):
    filters = {"conv": torch.full((2, 3, 3), value)}
    statistics = described({"before": filters, "after": filters})
    assert {number for moment in statistics.values() for number in moment["conv"].values()} == {None}

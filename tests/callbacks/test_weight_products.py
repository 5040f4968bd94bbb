"""What the callback keeps of a model's attention weights before and after training."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from callbacks import InitCallback, WeightProductsCallback
from structured_init import Mimetic
from structured_init.errors import StructuredInitError

pytestmark = [
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
]
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
LAYER = "network.blocks.1.attn"


class Classifier(L.LightningModule):
    def __init__(self, network=None, lr=1e-2):
        super().__init__()
        size = {"img_size": 8, "patch_size": 2, "embed_dim": 72, "depth": 2, "num_heads": 2, "num_classes": 3}
        self.network, self.lr = network or VisionTransformer(**size, drop_rate=0.2), lr

    def forward(self, images):
        return self.network(images)

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.lr)


def fit(folder, *callbacks, module=None, ckpt_path=None, **options):
    """Train for an epoch of two steps; return trainer and module."""
    L.seed_everything(0, verbose=False)
    module = module or Classifier()
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(8, 3, 8, 8, generator=generator), torch.randint(3, (8,), generator=generator)
    trainer = L.Trainer(
        **{"accelerator": "cpu", "max_epochs": 1, "default_root_dir": folder, "logger": CSVLogger(folder)} | options,
        callbacks=list(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    )
    weights_only = True if ckpt_path else None
    trainer.fit(module, DataLoader(TensorDataset(*images), 4), ckpt_path=ckpt_path, weights_only=weights_only)
    return trainer, module


def folder_of(trainer) -> Path:
    return Path(trainer.log_dir) / "weight_products"


def products_of(module):
    """Written out: W_q W_kᵀ of each of two heads, and Σ_h W_v W_o, of timm's fused layer (x Wᵀ)."""
    state = module.state_dict()
    query, key, value = (part.T.double() for part in state[f"{LAYER}.qkv.weight"].chunk(3))
    heads = [slice(0, 36), slice(36, 72)]
    products = torch.stack([query[:, head] @ key[:, head].T for head in heads])
    return products.float(), (value @ state[f"{LAYER}.proj.weight"].T.double()).float()


def test_files_hold_the_corners_and_the_summary_those_of_the_whole_products(tmp_path):
    trainer, module = fit(tmp_path, WeightProductsCallback())
    after = load_file(folder_of(trainer) / "after.safetensors")
    query_key, value_output = products_of(module)
    torch.testing.assert_close(after[f"{LAYER}:query_key"], query_key[:, :64, :64])
    torch.testing.assert_close(after[f"{LAYER}:value_output"], value_output[:64, :64])
    summary = json.loads((folder_of(trainer) / "summary.json").read_text())
    assert list(summary) == ["before", "after"]
    assert list(summary["after"]) == ["network.blocks.0.attn", LAYER]
    diagonals = [product.trace().item() / 72 for product in query_key]
    assert summary["after"][LAYER]["query_key_diagonal"] == pytest.approx(diagonals, rel=1e-4, abs=1e-7)
    off = value_output[~torch.eye(72, dtype=torch.bool)].std().item()
    assert summary["after"][LAYER]["value_output_off_diagonal_std"] == pytest.approx(off, rel=1e-4)


def test_before_is_what_the_initializer_wrote(tmp_path):
    trainer, _ = fit(tmp_path, InitCallback(Mimetic()), WeightProductsCallback())
    before, after = (load_file(folder_of(trainer) / f"{phase}.safetensors") for phase in ("before", "after"))
    summary = json.loads((folder_of(trainer) / "summary.json").read_text())["before"][LAYER]
    # The method's definition: W_q W_kᵀ = αZ + βI with β = 0.7, W_v W_o = αZ − βI; of the host's weights both are 0.
    assert min(summary["query_key_diagonal"]) > 0.2
    assert summary["value_output_diagonal"] < -0.1
    assert not torch.equal(before[f"{LAYER}:query_key"], after[f"{LAYER}:query_key"])


def test_training_is_bit_identical_with_and_without_the_callback(tmp_path):
    _, plain = fit(tmp_path / "plain")
    _, looked_at = fit(tmp_path / "looked_at", WeightProductsCallback())
    for name, parameter in plain.state_dict().items():
        assert torch.equal(parameter, looked_at.state_dict()[name]), name


def test_a_diverged_run_ends_and_its_numbers_are_null(tmp_path):
    trainer, _ = fit(tmp_path, WeightProductsCallback(), module=Classifier(lr=float("inf")))
    assert trainer.state.finished
    text = (folder_of(trainer) / "summary.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["after"][LAYER]["query_key_diagonal"] == [None, None]
    assert load_file(folder_of(trainer) / "after.safetensors")[f"{LAYER}:query_key"].isnan().all()


def test_a_resumed_run_keeps_its_before_and_gets_a_copy(tmp_path):
    first, _ = fit(tmp_path, WeightProductsCallback())
    checkpoint = first.checkpoint_callback.best_model_path
    callback = WeightProductsCallback()
    second, _ = fit(tmp_path, callback, max_epochs=2, ckpt_path=checkpoint)
    assert second.log_dir != first.log_dir
    assert callback.before == str((folder_of(first) / "before.safetensors").absolute())
    files = [folder_of(trainer) / "before.safetensors" for trainer in (first, second)]
    assert files[0].read_bytes() == files[1].read_bytes()
    summaries = [json.loads((folder_of(trainer) / "summary.json").read_text()) for trainer in (first, second)]
    assert summaries[0]["before"] == summaries[1]["before"]
    assert summaries[0]["after"] != summaries[1]["after"]


def test_a_model_without_attention_a_fast_run_and_a_disabled_callback_write_nothing(tmp_path):
    fit(tmp_path, WeightProductsCallback(), module=Classifier(nn.Sequential(nn.Flatten(), nn.Linear(192, 3))))
    fit(tmp_path, WeightProductsCallback(), fast_dev_run=True)
    fit(tmp_path, WeightProductsCallback(enabled=False))
    assert not list(tmp_path.rglob("weight_products"))


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StructuredInitError, match=r"cannot write '.*file/weight_products/before.safetensors'"):
        fit(tmp_path / "file", WeightProductsCallback(), logger=False, enable_checkpointing=False)

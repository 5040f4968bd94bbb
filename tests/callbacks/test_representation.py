import json
import logging
from pathlib import Path

import lightning as L
import pytest
import torch
import warm_process
from lightning.pytorch.loggers import CSVLogger
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from callbacks import RepresentationCallback
from structured_init.analysis import cka_matrix
from structured_init.errors import StructuredInitError

pytestmark = [
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
]
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Classifier(L.LightningModule):
    """A vision transformer with every kind of dropout."""

    def __init__(self, network: nn.Module | None = None):
        super().__init__()
        self.network = network or VisionTransformer(
            img_size=8, patch_size=2, embed_dim=12, depth=2, num_heads=2, num_classes=3, drop_rate=0.2,
            attn_drop_rate=0.2, proj_drop_rate=0.2, drop_path_rate=0.2,
        )  # fmt: skip

    def forward(self, images):
        return self.network(images)

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("val/loss", nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-2)


def images(seed: int, count: int = 24) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(
        torch.randn(count, 3, 8, 8, generator=generator), torch.randint(3, (count,), generator=generator)
    )


def fit(folder, callback=None, module=None, ckpt_path=None, train=None, val=None, **options):
    """Train for two epochs; the order of the data is drawn from the global random state."""
    L.seed_everything(0, verbose=False)
    module = module or Classifier()
    options = {"max_epochs": 2, "logger": CSVLogger(folder)} | options
    trainer = L.Trainer(
        accelerator="cpu",
        default_root_dir=folder,
        callbacks=[callback] if callback else [],
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        **options,
    )
    loaders = train or DataLoader(images(0), 8, shuffle=True), DataLoader(images(1), 8) if val is None else val
    trainer.fit(module, *loaders, ckpt_path=ckpt_path, weights_only=True if ckpt_path else None)
    return trainer, module


def small(**changes) -> RepresentationCallback:
    return RepresentationCallback(**{"samples": 16, "batch_size": 8} | changes)


def folder_of(trainer) -> Path:
    return Path(trainer.log_dir) / "representations"


def test_files_hold_the_centred_gram_matrices_of_the_trained_blocks(tmp_path):
    trainer, module = fit(tmp_path, small())
    before, after = (load_file(folder_of(trainer) / f"{phase}.safetensors") for phase in ("before", "after"))
    assert list(before) == list(after) == ["network.blocks.0", "network.blocks.1"]
    assert {(tuple(gram.shape), gram.dtype) for gram in after.values()} == {((2, 8, 8), torch.float32)}
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))[:16].sort().values
    network = module.network.eval()
    with torch.no_grad():
        x = network.norm_pre(network._pos_embed(network.patch_embed(images(1)[order][0])))
        for index, block in enumerate(network.blocks):
            x = block(x)
            features = (x.flatten(1)[:8] - x.flatten(1)[:8].mean(0)).double()
            expected = (features @ features.T).float()
            torch.testing.assert_close(after[f"network.blocks.{index}"][0], expected, atol=1e-4, rtol=1e-4)


def test_training_moves_representations_away_from_their_start(tmp_path):
    trainer, _ = fit(tmp_path, small())
    before, after = (load_file(folder_of(trainer) / f"{phase}.safetensors") for phase in ("before", "after"))
    itself, moved = cka_matrix(before, before).diagonal(), cka_matrix(before, after).diagonal()
    torch.testing.assert_close(itself, torch.ones(2, dtype=torch.float64))
    assert (moved < 0.999).all()


@pytest.mark.parametrize("with_validation", [True, False])
def test_training_is_bit_identical_with_and_without_the_callback(tmp_path, with_validation):
    class Noisy(Dataset):
        """Augments from the global random state, as torchvision does."""

        def __len__(self):
            return 24

        def __getitem__(self, index):
            image, label = images(0)[index]
            return image + torch.randn(3, 8, 8), label

    options = {"train": DataLoader(Noisy(), 8, shuffle=True)} | ({} if with_validation else {"limit_val_batches": 0})
    _, plain = fit(tmp_path / "plain", **options)
    trainer, looked_at = fit(tmp_path / "looked_at", small(), **options)
    assert (folder_of(trainer) / "after.safetensors").exists()
    for name, parameter in plain.state_dict().items():
        assert torch.equal(parameter, looked_at.state_dict()[name]), name
    assert not any(module._forward_hooks for module in looked_at.modules())


def test_resumed_run_keeps_its_before_and_gets_a_copy(tmp_path):
    first, _ = fit(tmp_path, small())
    original = (folder_of(first) / "before.safetensors").read_bytes()
    callback = small()
    second, _ = fit(tmp_path, callback, max_epochs=3, ckpt_path=first.checkpoint_callback.best_model_path)
    assert second.log_dir != first.log_dir
    assert callback.before == str((folder_of(first) / "before.safetensors").absolute())
    assert (folder_of(first) / "before.safetensors").read_bytes() == original
    assert (folder_of(second) / "before.safetensors").read_bytes() == original
    assert (folder_of(second) / "after.safetensors").read_bytes() != original


@pytest.mark.parametrize("gone", [True, False])
def test_resumed_run_without_a_before_has_only_after(tmp_path, gone):
    first, _ = fit(tmp_path, small() if gone else None)
    if gone:
        (folder_of(first) / "before.safetensors").unlink()
    second, _ = fit(tmp_path, small(), max_epochs=3, ckpt_path=first.checkpoint_callback.best_model_path)
    assert [path.name for path in folder_of(second).iterdir()] == ["after.safetensors"]


def test_one_callback_serves_several_new_models(tmp_path):
    callback = small()
    first, _ = fit(tmp_path, callback)
    second, _ = fit(tmp_path, callback, module=Classifier())
    assert callback.before.startswith(str(Path(second.log_dir).absolute()))
    assert {path.name for path in folder_of(first).iterdir()} == {"before.safetensors", "after.safetensors"}


def test_network_compiled_in_place_is_looked_at_under_its_names(tmp_path):
    module = Classifier()
    module.network.compile(backend="eager")
    trainer, _ = fit(tmp_path, small(), module, max_epochs=1)
    assert list(load_file(folder_of(trainer) / "after.safetensors")) == ["network.blocks.0", "network.blocks.1"]


def test_module_says_what_its_forward_takes(tmp_path):
    class Named(Classifier):
        def forward(self, pixels, extra):
            return self.network(pixels + extra)

        def training_step(self, batch, index):
            return self(batch[0], 0).square().mean()

        def validation_step(self, batch, index):
            pass

        def probe_inputs(self, batch):
            return {"pixels": batch[0], "extra": torch.zeros_like(batch[0])}

    trainer, _ = fit(tmp_path, small(), Named(), max_epochs=1)
    assert load_file(folder_of(trainer) / "after.safetensors")["network.blocks.0"].shape == (2, 8, 8)


@pytest.mark.parametrize(
    ("network", "samples", "line"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(192, 3)), 24, "Classifier has no list of equal blocks to look at"),
        (None, 3, "similarities need at least 4 samples, got 3"),
    ],
)
def test_nothing_to_look_at_is_a_line_and_training_goes_on(tmp_path, network, samples, line, monkeypatch):
    said = []
    monkeypatch.setattr("callbacks.before_after.rank_zero_info", said.append)
    val = DataLoader(images(1, samples), 8)
    trainer, _ = fit(tmp_path, small(), Classifier(network), val=val, max_epochs=1)
    assert trainer.state.finished
    assert said == [f"representations: {line}"] * 2
    assert not folder_of(trainer).exists()


def test_fast_dev_run_and_a_disabled_callback_write_nothing(tmp_path):
    fit(tmp_path, small(), fast_dev_run=True)
    fit(tmp_path, small(enabled=False))
    assert not list(tmp_path.rglob("*.safetensors"))


def test_wrong_use_is_one_line(tmp_path):
    with pytest.raises(StructuredInitError, match=r"batch_size must be from 4 to samples \(8\), got 64"):
        RepresentationCallback(samples=8)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StructuredInitError, match=r"cannot write '.*file/representations/before.safetensors'"):
        fit(tmp_path / "file", small(), logger=False, enable_checkpointing=False)


SCRIPT = """
import sys, json, torch, lightning as L
from tests_module import Classifier, images
from torch.utils.data import DataLoader
from callbacks import RepresentationCallback
from structured_init.errors import StructuredInitError

def fit(folder):
    torch.manual_seed(0)
    module, callback = Classifier(), RepresentationCallback(samples=16, batch_size=8)
    trainer = L.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False,
                        default_root_dir=folder, callbacks=[callback], enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    error = None
    try:
        trainer.fit(module, DataLoader(images(0), 4), DataLoader(images(1), 4))
    except StructuredInitError as failure:
        error = str(failure)
    return trainer.global_rank, [callback.before, error]

rank, found = fit(sys.argv[1])
with open(f"{sys.argv[1]}/rank{rank}.json", "w") as file:
    json.dump([found, fit(f"{sys.argv[1]}/in_the_way/logs")[1]], file)
"""


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_keep_what_one_does_and_fail_together(tmp_path):
    (tmp_path / "tests_module.py").write_text(Path(__file__).read_text())
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "in_the_way").write_text("")
    started, logs = warm_process.start_ranks(tmp_path / "script.py", [str(tmp_path)], {}, tmp_path)
    warm_process.wait(started, logs, 240)
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    assert ranks[0] == ranks[1]
    (path, error), (_, failure) = ranks[0]
    assert error is None
    assert "cannot write" in failure
    torch.manual_seed(0)
    alone, _ = fit(tmp_path / "alone", small(), Classifier(), max_epochs=1)
    found, expected = load_file(path), load_file(folder_of(alone) / "before.safetensors")
    assert list(found) == list(expected)
    for name, gram in found.items():
        torch.testing.assert_close(gram, expected[name])

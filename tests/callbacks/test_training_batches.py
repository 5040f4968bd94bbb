"""Batches of the training data for an initialization that trains on them, and the time that it takes."""

from __future__ import annotations

import json

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from callbacks import ElapsedTime, InitCallback
from structured_init import Initializer, SelfPretraining, StructuredInitError

TRAINING, VALIDATION = torch.arange(1.0, 13.0), -torch.ones(4)


class Images(TensorDataset):
    """Images of one value each, which says which one it is."""

    def __init__(self, values):
        super().__init__(values[:, None, None, None].expand(-1, 3, 4, 4), torch.zeros(len(values)).long())


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        sizes = {"img_size": 4, "patch_size": 2, "embed_dim": 8, "depth": 2, "num_heads": 2, "num_classes": 2}
        self.network = VisionTransformer(**sizes)

    def forward(self, images):
        return self.network(images)

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.0)


class Reads(Initializer):
    """Keeps what batches it is given, twice the first few."""

    def plan(self, weights, *, rng, batch=None):
        self.seen = [[next_[:, 0, 0, 0].tolist() for next_, _ in zip(weights.batches, range(6))] for _ in range(2)]

    @property
    def needs_batches(self):
        return 5


def fit(tmp_path, initializer, loader=None, callbacks=(), seed=3):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = Trainer(
        default_root_dir=tmp_path, max_steps=1, accelerator="cpu", logger=False, **quiet,
        callbacks=[InitCallback(initializer, seed=seed), *callbacks],
    )  # fmt: skip
    module = Module()
    trainer.fit(module, loader or DataLoader(Images(TRAINING), batch_size=2), DataLoader(Images(VALIDATION)))
    return module


def test_batches_come_from_the_training_data_alone_and_are_the_same_each_time(tmp_path):
    first, again, other = Reads(), Reads(), Reads()
    for initializer, seed in ((first, 3), (again, 3), (other, 4)):
        fit(tmp_path, initializer, seed=seed)
    batches, repeated = first.seen
    assert batches == repeated
    assert again.seen == first.seen
    assert other.seen != first.seen
    assert {len(batch) for batch in batches} == {5}
    assert all(len(set(batch)) == 5 for batch in batches)
    assert len({tuple(batch) for batch in batches}) == 6
    values = {value for batch in batches for value in batch}
    assert values <= set(TRAINING.tolist())
    assert len(values) > 9


def test_a_fit_pretrains_on_its_own_data_and_its_time_counts(tmp_path):
    elapsed = ElapsedTime()
    torch.manual_seed(0)
    fresh = Module().network.blocks[0].attn.qkv.weight
    torch.manual_seed(0)
    module = fit(tmp_path, SelfPretraining(iterations=2, batch_size=3), callbacks=[elapsed])
    assert not torch.equal(module.network.blocks[0].attn.qkv.weight, fresh)
    assert 0 < elapsed.initialization < elapsed.seconds
    assert json.loads(json.dumps(elapsed.state_dict())) == elapsed.state_dict()
    later = ElapsedTime()
    later.load_state_dict(elapsed.state_dict())
    assert (later.seconds, later.initialization) == (elapsed.seconds, elapsed.initialization)


class Stream(IterableDataset):
    def __iter__(self):
        yield from Images(TRAINING)


def test_samples_without_numbers_are_one_line(tmp_path):
    with pytest.raises(StructuredInitError, match="needs a DataLoader of a dataset with numbered samples"):
        fit(tmp_path, SelfPretraining(iterations=1), loader=DataLoader(Stream(), batch_size=2))

"""SpatialFilters: each kind against its published formula, shared or not, frozen or trained, resumed too.

Letters: F filters, f kernel size, E energy.
"""

from __future__ import annotations

import math
import warnings

import lightning.pytorch as pl
import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from callbacks import InitCallback
from structured_init import Compose, KaimingUniform, SpatialFilters, initialize
from structured_init.conv.spatial_filters import gaussian_filters, impulse_filters, random_filters

EVERYWHERE = settings(max_examples=40, deadline=None, derandomize=True)
KERNELS = st.lists(st.integers(1, 7), min_size=1, max_size=2).map(tuple).filter(lambda size: math.prod(size) > 1)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def energies(filters):
    return filters.double().flatten(1).square().sum(dim=1)


def convmixer(width=64, depth=2, kernel=5, seed=0):
    torch.manual_seed(seed)
    return timm.models.convmixer.ConvMixer(width, depth, kernel_size=kernel, patch_size=4, num_classes=3)


def layers(model):
    """The depthwise layers of a ConvMixer, or of a stack of them alone, which costs less."""
    if isinstance(model, nn.Sequential):
        return list(model)
    return [model.blocks[i][0].fn[0] for i in range(len(model.blocks))]


@EVERYWHERE
@given(KERNELS)
def test_random_filters_are_uniform_with_the_energy(kernel):
    filters = random_filters(3000, kernel, generator=generator())
    bound = 1 / math.sqrt(math.prod(kernel))
    assert filters.shape == (3000, *kernel)
    assert 0.99 * bound < filters.abs().max() <= bound
    assert energies(filters).mean().item() == pytest.approx(1 / 3, rel=0.06)


def test_impulses_stand_at_every_pixel_equally_often():
    filters = impulse_filters(9000, (3, 3), generator=generator()).flatten(1)
    counts = (filters != 0).sum(dim=0)
    assert counts.sum() == 9000
    assert (counts - 1000).abs().max() < 5 * math.sqrt(1000 * 8 / 9)


@EVERYWHERE
@given(KERNELS)
def test_a_bump_is_a_gaussian_around_its_largest_pixel(kernel):
    filters = gaussian_filters(60, kernel, generator=generator()).numpy()
    factors = []
    for each in filters:
        middle = np.unravel_index(each.argmax(), each.shape)
        distance = sum((place - m) ** 2 for place, m in zip(np.indices(each.shape), middle, strict=True))
        np.testing.assert_allclose(each, each.max() * np.exp(-distance / 2), rtol=1e-9)
        factors.append(each.max())
    assert factors == pytest.approx([factors[0]] * 60)  # one for all, as published
    assert (filters**2).sum() / 60 == pytest.approx(1 / 3)


@pytest.mark.parametrize("kind", ["random", "impulse", "box", "gaussian"])
def test_every_kind_has_the_published_energy(kind):
    model = nn.Sequential(nn.Conv2d(3000, 3000, 5, groups=3000))
    initialize(model, SpatialFilters(kind))
    weight = layers(model)[0].weight.detach()
    assert energies(weight).mean().item() == pytest.approx(1 / 3, rel=0.02)
    assert (len(weight.unique()) == 1) == (kind == "box")


def test_the_host_keeps_its_filters_unless_they_are_asked_for():
    model = convmixer()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report = initialize(model, SpatialFilters("host", frozen=True))
    assert report.changed == []
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [parameter.requires_grad for parameter in layers(model)[0].parameters()] == [False, False]
    changed = {name for e in initialize(convmixer(), SpatialFilters("impulse")).changed for name in e.names}
    assert changed == {f"blocks.{i}.0.fn.0.weight" for i in range(2)}


def test_draws_depend_on_seed_and_name_alone():
    def weight(seed=0, **arguments):
        model = convmixer()
        initialize(model, SpatialFilters("impulse", **arguments), seed=seed)
        return layers(model)[1].weight.detach()

    first = weight()
    assert torch.equal(first, weight(where="blocks.1.*", frozen=True))
    assert not torch.equal(first, weight(seed=1))


class Task(pl.LightningModule):
    def __init__(self, seed=0):
        super().__init__()
        self.network = convmixer(width=8, kernel=3, seed=seed)

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def configure_optimizers(self):
        self.optimized = [p for p in self.parameters() if p.requires_grad]
        return torch.optim.AdamW(self.optimized, lr=0.01, weight_decay=0.1)

    def train_dataloader(self):
        torch.manual_seed(0)
        return DataLoader(TensorDataset(torch.randn(8, 3, 8, 8), torch.arange(8) % 3), batch_size=4)


def fit(task, folder, epochs, **options):
    callback = InitCallback(SpatialFilters("impulse", frozen=True), seed=0)
    trainer = pl.Trainer(
        max_epochs=epochs, default_root_dir=folder, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[callback],
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(task, **options)
    return trainer


def test_frozen_filters_keep_their_values_through_training_and_a_resume(tmp_path):
    task = Task()
    fit(task, tmp_path, 1).save_checkpoint(tmp_path / "last.ckpt")
    expected = convmixer(width=8, kernel=3)
    initialize(nn.ModuleDict({"network": expected}), SpatialFilters("impulse"), seed=0)
    kept = [(layer.weight.detach().clone(), layer.bias.detach().clone()) for layer in layers(task.network)]
    assert all(torch.equal(pair[0], layer.weight) for pair, layer in zip(kept, layers(expected), strict=True))
    resumed = Task(seed=5)
    fit(resumed, tmp_path, 3, ckpt_path=tmp_path / "last.ckpt")
    for (weight, bias), layer in zip(kept, layers(resumed.network), strict=True):
        assert not layer.weight.requires_grad
        assert torch.equal(layer.weight, weight)
        assert torch.equal(layer.bias, bias)
        assert not {id(layer.weight), id(layer.bias)} & set(map(id, resumed.optimized))
    assert not torch.equal(resumed.network.head.weight, task.network.head.weight)  # the rest went on


def test_a_composed_start_freezes_too():
    model = convmixer()
    initialize(model, Compose([KaimingUniform(), SpatialFilters("gaussian", frozen=True)]))
    assert [p.requires_grad for p in layers(model)[0].parameters()] == [False, False]

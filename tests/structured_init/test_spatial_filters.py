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
from structured_init.conv.spatial_filters import box_filters, gaussian_filters, random_filters, softmax_filters

EVERYWHERE = settings(max_examples=40, deadline=None, derandomize=True)
KERNELS = st.lists(st.integers(1, 7), min_size=1, max_size=2).map(tuple).filter(lambda size: math.prod(size) > 1)
ENERGIES = st.sampled_from([1 / 3, 1 / 5, 2.0])


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
@given(KERNELS, ENERGIES)
def test_random_filters_are_uniform_with_the_energy(kernel, energy):
    filters = random_filters(3000, kernel, energy, generator=generator())
    bound = math.sqrt(3 * energy / math.prod(kernel))
    assert filters.shape == (3000, *kernel)
    assert 0.99 * bound < filters.abs().max() <= bound
    assert energies(filters).mean().item() == pytest.approx(energy, rel=0.06)


@EVERYWHERE
@given(KERNELS, ENERGIES, st.integers(1, 49))
def test_a_box_has_its_energy_on_as_many_pixels(kernel, energy, size):
    pixels = math.prod(kernel)
    size = min(size, pixels)
    filters = box_filters(50, kernel, energy, size=size, generator=generator()).flatten(1)
    assert (filters != 0).sum(dim=1).tolist() == [size] * 50
    assert filters[filters != 0].tolist() == pytest.approx([math.sqrt(energy / size)] * (50 * size))


def test_impulses_stand_at_every_pixel_equally_often():
    filters = box_filters(9000, (3, 3), 1 / 3, size=1, generator=generator()).flatten(1)
    counts = (filters != 0).sum(dim=0)
    assert counts.sum() == 9000
    assert (counts - 1000).abs().max() < 5 * math.sqrt(1000 * 8 / 9)


@EVERYWHERE
@given(KERNELS, ENERGIES, st.sampled_from([0.3, 1.0, 4.0]))
def test_a_bump_is_a_gaussian_around_its_largest_pixel(kernel, energy, variance):
    filters = gaussian_filters(60, kernel, energy, variance=variance, generator=generator()).numpy()
    factors = []
    for each in filters:
        middle = np.unravel_index(each.argmax(), each.shape)
        distance = sum((place - m) ** 2 for place, m in zip(np.indices(each.shape), middle, strict=True))
        np.testing.assert_allclose(each, each.max() * np.exp(-distance / (2 * variance)), rtol=1e-9)
        factors.append(each.max())
    assert factors == pytest.approx([factors[0]] * 60)  # one for all, as published
    assert (filters**2).sum() / 60 == pytest.approx(energy)


@EVERYWHERE
@given(KERNELS)
def test_softmax_filters_are_positive_sum_to_one_and_are_almost_flat(kernel):
    filters = softmax_filters(50, kernel, generator=generator())
    logits = random_filters(50, kernel, 1 / 3, generator=generator())
    np.testing.assert_allclose(filters, torch.softmax(logits.flatten(1), 1).view_as(filters))
    assert bool((filters > 0).all())
    pixels = math.prod(kernel)
    assert filters.flatten(1).sum(dim=1).tolist() == pytest.approx([1.0] * 50)
    assert filters.max().item() <= math.exp(2 / math.sqrt(pixels)) / pixels


@pytest.mark.parametrize("energy", ["1/3", "1/f", 0.7])
@pytest.mark.parametrize("kind", ["random", "impulse", "box", "gaussian"])
def test_the_published_energies(kind, energy):
    model = nn.Sequential(nn.Conv2d(3000, 3000, 5, groups=3000))
    initialize(model, SpatialFilters(kind, energy=energy))
    expected = {"1/3": 1 / 3, "1/f": 1 / 5}.get(energy, energy)
    assert energies(layers(model)[0].weight.detach()).mean().item() == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("distinct", [1, 4, 500])
def test_channels_share_as_few_filters_as_asked(distinct):
    model = convmixer(depth=2)
    initialize(model, SpatialFilters("random", distinct=distinct))
    first, second = (layer.weight.detach() for layer in layers(model))
    assert first.unique(dim=0).shape[0] == min(distinct, 64)
    if distinct == 4:  # at random, so neither equally often nor in turn
        counts = first.unique(dim=0, return_counts=True)[1]
        assert counts.min() < counts.max()
    assert not set(first.flatten().tolist()) & set(second.flatten().tolist())  # a set of its own in each layer


def test_the_host_keeps_its_filters_unless_they_are_asked_for():
    model = convmixer()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report = initialize(model, SpatialFilters("host", frozen=True))
    assert report.changed == []
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [parameter.requires_grad for parameter in layers(model)[0].parameters()] == [False, False]
    changed = {name for e in initialize(convmixer(), SpatialFilters("impulse")).changed for name in e.names}
    assert changed == {f"blocks.{i}.0.fn.0.weight" for i in range(2)}


@pytest.mark.parametrize("bias", ["keep", "uniform", "zero"])
def test_biases(bias):
    model = nn.Sequential(nn.Conv2d(4000, 4000, 5, groups=4000))
    before = layers(model)[0].bias.detach().clone()
    initialize(model, SpatialFilters(bias=bias))
    after = layers(model)[0].bias.detach()
    if bias == "keep":
        assert torch.equal(after, before)
    elif bias == "zero":
        assert not after.any()
    else:
        assert not torch.equal(after, before)
        assert 0.198 < after.abs().max() <= 0.2
        assert after.std().item() == pytest.approx(0.2 / math.sqrt(3), rel=0.05)
    without = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4, bias=False))
    assert len(initialize(without, SpatialFilters(bias=bias)).changed) == 1


def test_draws_depend_on_seed_and_name_alone():
    def weight(seed=0, **arguments):
        model = convmixer()
        initialize(model, SpatialFilters("impulse", **arguments), seed=seed)
        return layers(model)[1].weight.detach()

    first = weight()
    assert torch.equal(first, weight(where="blocks.1.*", frozen=True, bias="zero"))
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
    initialize(model, Compose([KaimingUniform(), SpatialFilters("gaussian", frozen=True, freeze_bias=False)]))
    assert [p.requires_grad for p in layers(model)[0].parameters()] == [False, True]

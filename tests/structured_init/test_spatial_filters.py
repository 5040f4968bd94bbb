"""SpatialFilters: each kind against its published formula, frozen or trained.

Letters: F filters, f kernel size, E energy.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from structured_init import SpatialFilters, initialize
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

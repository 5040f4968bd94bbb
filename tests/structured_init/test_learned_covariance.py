"""Covariances of trained filters: estimated from anything that holds them, kept, and taken to other networks."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from structured_init import (
    FilterCovariance,
    LearnedCovariances,
    StructuredInitError,
    depthwise_conv_sites,
    estimate_covariances,
    initialize,
)
from structured_init.conv.learned_covariance import LayerCovariance, depthwise_weights, resize, shrink

CHECKPOINTS = sorted((Path(os.environ.get("STRUCTURED_INIT_DATA", "-")) / "weights").glob("convmixer256_8_k9*.pth"))
real = pytest.mark.skipif(not CHECKPOINTS, reason="STRUCTURED_INIT_DATA holds no weights")


def convmixer(width=40, depth=3, kernel=3, patch=4, seed=0):
    torch.manual_seed(seed)
    return timm.models.convmixer.ConvMixer(width, depth, kernel_size=kernel, patch_size=patch, num_classes=10)


def learned(*matrices, size=(3, 3), depths=None):
    depths = depths or [i / max(len(matrices) - 1, 1) for i in range(len(matrices))]
    return LearnedCovariances(
        [LayerCovariance(f"layer{i}", d, size, 100, m) for i, (d, m) in enumerate(zip(depths, matrices, strict=True))]
    )


def positive(size, seed):
    root = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return root @ root.mT


def from_module(model, folder):
    return model


def from_state_dict(model, folder):
    return {f"module.{name}": value for name, value in model.state_dict().items()}


def from_pickle(model, folder):
    torch.save(from_state_dict(model, folder), folder / "weights.pth")
    return str(folder / "weights.pth")


def from_safetensors(model, folder):
    save_file(model.state_dict(), folder / "weights.safetensors")
    return str(folder / "weights.safetensors")


@pytest.mark.parametrize("source", [from_module, from_state_dict, from_pickle, from_safetensors])
def test_the_estimate_is_numpys_from_whatever_holds_the_weights(source, tmp_path):
    model = convmixer(depth=11)  # a file may have layer 10 before layer 2
    found = estimate_covariances(source(model, tmp_path))
    assert len(found) == 11
    for index, layer in enumerate(found.layers):
        filters = model.blocks[index][0].fn[0].weight.detach().double().flatten(1).numpy()
        np.testing.assert_allclose(layer.matrix, np.cov(filters.T, bias=True), atol=1e-12)
        assert (layer.depth, layer.kernel_size, layer.count) == (index / 10, (3, 3), 40)
        assert layer.name.endswith(f"blocks.{index}.0.fn.0")
        assert not layer.name.startswith("module.")


def test_shapes_tell_depthwise_from_other_weights_and_where_leaves_out():
    model = nn.Sequential(nn.Conv2d(1, 30, 3), nn.Conv2d(30, 30, 3, groups=30), nn.Conv2d(30, 30, 1, groups=30),
                          nn.Conv1d(30, 60, 5, groups=30), nn.Linear(30, 30), nn.BatchNorm2d(30))  # fmt: skip
    names = [name for name, _ in depthwise_weights(dict(model.state_dict()))]
    assert names == ["0", "1", "3"]  # a first layer of gray images looks like one
    assert [name for name, _ in depthwise_weights(model)] == ["1", "3"]
    assert [each.name for each in estimate_covariances(dict(model.state_dict()), where="1").layers] == ["1"]


def test_a_file_and_its_checkpoint_start_a_network_alike(tmp_path):
    path = from_pickle(convmixer(), tmp_path)
    estimate_covariances(path).save(tmp_path / "covariances.safetensors")
    starts = [path, str(tmp_path / "covariances.safetensors"), tmp_path / "covariances.safetensors"]
    starts += [estimate_covariances(path), estimate_covariances(Path(path))]
    filters = []
    for covariances in starts:
        model = convmixer(seed=1)
        report = initialize(model, FilterCovariance(covariances=covariances))
        assert report.changed[0].set_by == ("FilterCovariance: learned",)
        assert len(report.changed) == 3
        filters.append(depthwise_conv_sites(model)[1].filters)
    assert all(torch.equal(filters[0], each) for each in filters[1:])


def test_between_two_layers_it_is_linear_in_depth_and_beyond_them_constant():
    first, last = positive(9, 0), positive(9, 1)
    found = learned(first, last, depths=[0.2, 0.6])
    torch.testing.assert_close(found.at(0.3, (3, 3)), 0.75 * first + 0.25 * last)
    torch.testing.assert_close(found.at(0.2, (3, 3)), first)
    torch.testing.assert_close(found.at(0.0, (3, 3)), first)
    torch.testing.assert_close(found.at(1.0, (3, 3)), last)
    torch.testing.assert_close(learned(first).at(0.7, (3, 3)), first)


@pytest.mark.parametrize("size", [(2, 2), (3, 7)])
def test_another_kernel_size_keeps_energy_and_stays_positive_semidefinite(size):
    matrices = [positive(9, seed) for seed in range(3)]
    found = learned(*matrices).at(0.25, size)
    resized = [resize(matrix, (3, 3), size) for matrix in matrices[:2]]
    scaled = [new * (old.trace() / new.trace()) for new, old in zip(resized, matrices, strict=False)]
    torch.testing.assert_close(found, (scaled[0] + scaled[1]) / 2)
    assert found.trace().item() == pytest.approx((matrices[0].trace() + matrices[1].trace()).item() / 2)
    assert torch.linalg.eigvalsh(found).min() > -1e-12


def test_fewer_channels_than_needed_is_one_line_without_shrinkage():
    model = convmixer(width=9)
    with pytest.raises(StructuredInitError, match=r"'blocks.0.0.fn.0' has 9 filters of 3×3: .* shrinkage=0\.1"):
        estimate_covariances(model)
    matrix = estimate_covariances(model, shrinkage=0.1).layers[0].matrix
    assert torch.linalg.matrix_rank(matrix) == 9
    filters = model.blocks[0][0].fn[0].weight.detach().double().flatten(1).numpy()
    np.testing.assert_allclose(matrix, shrink(torch.from_numpy(np.cov(filters.T, bias=True)), 0.1), atol=1e-12)


def test_a_checkpoint_with_too_few_filters_is_refused_with_the_way_out(tmp_path):
    path = from_pickle(convmixer(width=8), tmp_path)
    with pytest.raises(StructuredInitError, match=r"^FilterCovariance: 'blocks.0.0.fn.0' has 8 filters of 3×3"):
        initialize(convmixer(width=30), FilterCovariance(covariances=path))
    initialize(convmixer(width=30), FilterCovariance(covariances=estimate_covariances(path, shrinkage=0.3)))


def test_filters_are_drawn_from_the_interpolated_law():
    matrices = [0.1 * positive(9, seed) for seed in range(2)]
    model = nn.Sequential(*(nn.Conv2d(20_000, 20_000, 3, groups=20_000) for _ in range(3)))
    initialize(model, FilterCovariance(covariances=learned(*matrices)))
    filters = depthwise_conv_sites(model)[1].filters.double().flatten(1)
    law = (matrices[0] + matrices[1]) / 2
    assert ((filters.mT @ filters / len(filters) - law).norm() / law.norm()).item() < 0.04


def test_what_else_can_be_wrong_is_one_line(tmp_path):
    path = tmp_path / "covariances.safetensors"
    with pytest.raises(StructuredInitError, match=r"^cannot read filter covariances from '.*covariances.safetensors'"):
        LearnedCovariances.load(path)
    save_file(convmixer().state_dict(), path)
    with pytest.raises(StructuredInitError, match=r"holds no filter covariances: estimate_covariances computes"):
        LearnedCovariances.load(path)
    with pytest.raises(StructuredInitError, match=r"saved in a .safetensors file, got '.*covariances.pt'"):
        learned(positive(9, 0)).save(tmp_path / "covariances.pt")
    with pytest.raises(StructuredInitError, match=r"^estimate_covariances: Sequential has no depthwise conv"):
        estimate_covariances(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(StructuredInitError, match=r"has no depthwise convolution; none of its tensors"):
        estimate_covariances(nn.Linear(2, 2).state_dict())
    with pytest.raises(StructuredInitError, match=r"where='stem' selects none of the depthwise convolutions"):
        estimate_covariances(convmixer(), where="stem")


@real
@pytest.mark.parametrize("path", CHECKPOINTS, ids=lambda path: path.stem[-8:])
def test_a_trained_convmixer_is_read_and_its_variance_spreads_with_depth(path):
    found = estimate_covariances(str(path))
    assert [layer.name for layer in found.layers] == [f"{block}.0.fn.0" for block in range(3, 11)]
    assert all((layer.kernel_size, layer.count) == ((9, 9), 256) for layer in found.layers)
    gathered = []
    for layer in found.layers:
        variance = layer.matrix.diagonal().view(9, 9)
        gathered.append((variance[3:6, 3:6].mean() / variance.mean()).item())
        assert torch.linalg.eigvalsh(layer.matrix).min() > 0
    assert gathered == sorted(gathered, reverse=True)
    assert gathered[0] > 5 > 1.3 > gathered[-1] > 1

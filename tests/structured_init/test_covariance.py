"""The closed-form covariance, its projection and its draws, against the block algebra and scipy.

Letters: k kernel size, K = k² weights of a filter.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.linalg
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from structured_init import (
    FilterCovariance,
    StructuredInitError,
    depthwise_conv_sites,
    initialize,
)
from structured_init.conv.covariance import (
    closed_form,
    sigma_at,
    symmetric_root,
)
from structured_init.conv.learned_covariance import resize

EVERYWHERE = settings(max_examples=40, deadline=None, derandomize=True)
SIGMAS = st.floats(0.05, 8)
SIZES = st.integers(1, 7)


def project(covariance):
    """The covariance that is drawn from."""
    root = symmetric_root(covariance)
    return root @ root


def block_algebra(rows, columns, sigma):
    """§4 of the paper as matrices of blocks: Ĉ = M ⊙ (C − ½ S), Σ = ½ (Ĉ + Ĉᴮ), with indices from 0."""
    centre = rows // 2, columns // 2
    z = np.array(
        [
            [math.exp(-((i - centre[0]) ** 2 + (j - centre[1]) ** 2) / (2 * sigma)) for j in range(columns)]
            for i in range(rows)
        ]
    )
    c_hat = np.empty((rows, columns, rows, columns))
    for i, j in itertools.product(range(rows), range(columns)):
        moved = np.roll(z, (i - centre[0], j - centre[1]), axis=(0, 1))
        c_hat[i, j] = z[i, j] * (moved - z / 2)
    return (c_hat + c_hat.transpose(2, 3, 0, 1)).reshape(rows * columns, rows * columns) / 2


@EVERYWHERE
@given(SIZES, SIZES, SIGMAS)
def test_the_formula_is_the_papers_block_algebra(rows, columns, sigma):
    np.testing.assert_allclose(closed_form((rows, columns), sigma), block_algebra(rows, columns, sigma), atol=1e-15)


@EVERYWHERE
@given(st.integers(2, 9), SIGMAS)
def test_one_dimension_is_a_kernel_of_one_row(size, sigma):
    assert torch.equal(closed_form((size,), sigma), closed_form((1, size), sigma))


def test_the_schedule_widens_with_depth_and_its_traces_grow():
    sigmas = [sigma_at(i / 7, 0.16, 0.32, 2.88) for i in range(8)]
    assert sigmas == pytest.approx([0.160, 0.235, 0.369, 0.562, 0.813, 1.123, 1.492, 1.920], abs=6e-4)
    traces = [closed_form((9, 9), sigma).trace().item() for sigma in sigmas]
    assert traces == pytest.approx([0.68, 1.01, 1.68, 2.63, 3.83, 5.29, 7.03, 9.03], abs=6e-3)
    assert project(closed_form((9, 9), sigmas[-1])).trace().item() == pytest.approx(9.31, abs=6e-3)  # what is drawn


@EVERYWHERE
@given(st.integers(2, 6), st.integers(1, 6), SIGMAS)
def test_the_root_is_the_one_that_scipy_finds(rows, columns, sigma):
    """Unique, although the eigenvectors are not: a draw depends on no linear algebra library."""
    covariance = closed_form((rows, columns), sigma)
    root = symmetric_root(covariance)
    torch.testing.assert_close(root, root.mT)
    values, vectors = scipy.linalg.eigh(covariance.numpy(), driver="ev")
    np.testing.assert_allclose(root, vectors * np.sqrt(np.maximum(values, 0)) @ vectors.T, atol=1e-7)


def convmixer(kernel=5, width=64, depth=3, **changes):
    torch.manual_seed(1)
    return timm.models.convmixer.ConvMixer(width, depth, kernel_size=kernel, patch_size=4, num_classes=3, **changes)


def stack(filters, depth, kernel):
    """Depthwise convolutions and nothing else: many filters that cost little."""
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Conv2d(filters, filters, kernel, groups=filters) for _ in range(depth)))


def energies(model):
    return [site.filters.double().square().sum().item() / site.num_filters for site in depthwise_conv_sites(model)]


def test_a_layer_is_drawn_from_the_law_of_its_depth():
    model = stack(20_000, 2, kernel=3)
    initialize(model, FilterCovariance(sigma0=0.3, v=0.5, a=0.8))
    for site, sigma in zip(depthwise_conv_sites(model), (0.3, 0.3 + 0.5 + 0.4), strict=True):
        filters = site.filters.double().flatten(1)
        law = project(torch.from_numpy(block_algebra(3, 3, sigma)))
        assert ((filters.mT @ filters / len(filters) - law).norm() / law.norm()).item() < 0.04
        assert filters.mean(dim=0).abs().max() < 0.03


def test_trace_keeps_the_energy_that_the_host_gave():
    model = stack(4000, 3, kernel=5)
    with torch.no_grad():
        model[1].weight *= 3
        model[2].weight += 0.2  # a mean filter counts as energy
    before = energies(model)
    assert before == pytest.approx([1 / 3, 3, 1 / 3 + 25 * 0.04], rel=0.05)  # PyTorch's default, of every kernel size
    initialize(model, FilterCovariance(normalize="trace"))
    assert energies(model) == pytest.approx(before, rel=0.1)


def test_frozen_filters_are_not_trained_and_the_report_counts_them():
    model = convmixer()
    total = sum(parameter.numel() for parameter in model.parameters())
    report = initialize(model, FilterCovariance(frozen=True))
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    expected = {f"blocks.{i}.0.fn.0.{part}" for i in range(3) for part in ("weight", "bias")}
    assert frozen == expected
    count = 3 * 64 * (25 + 1)
    assert (report.trainable_parameters, report.total_parameters) == (total - count, total)
    assert f"\n{total - count:,} of {total:,} parameters are trained\n" in str(report)


def test_a_bandwidth_that_vanishes_is_one_line():
    with pytest.raises(StructuredInitError, match=r"bandwidth of 'blocks.2.0.fn.0' at depth 1 is -0.04: sigma0"):
        initialize(convmixer(), FilterCovariance(sigma0=0.16, v=-0.2, a=0.0))


@EVERYWHERE
@given(st.integers(1, 6), st.integers(1, 9))
def test_a_filter_that_is_stretched_has_the_resized_covariance(size, new):
    """Of one filter f the second moment is f fᵀ: resized it must be that of the filter resized by torch."""
    f = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(size * 10 + new))
    if size > 1 and new > 1:
        stretched = nn.functional.interpolate(f[None, None], size=(new, new), mode="bilinear", align_corners=True)[0, 0]
    else:
        middle = f[[(size - 1) // 2, size // 2]][:, [(size - 1) // 2, size // 2]].mean()
        stretched = middle.expand(new, new)
    found = resize(torch.outer(f.flatten(), f.flatten()), (size, size), (new, new))
    expected = torch.outer(stretched.flatten(), stretched.flatten())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)

"""The Cayley layers: orthogonal at any shape, equal to the reference and to the dense operator, never out of date."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from structured_init.layers import CayleyConv2d, CayleyLinear

SHAPES = {
    "inside": st.integers(1, 6),
    "outside": st.integers(1, 13),
    "kernel": st.integers(1, 4),
    "blocks": st.tuples(st.integers(4, 7), st.integers(4, 7)),
    "stride": st.integers(1, 3),
    "seed": st.integers(0, 99),
}


def published_cayley(matrices):
    """(I − A)(I + A)⁻¹ of W completed by zeros to a square, A = W − Wᴴ, cut back to the shape of W (2104.07167, §3)."""
    rows, columns = matrices.shape[-2:]
    size = max(rows, columns)
    square = nn.functional.pad(matrices, (0, size - columns, 0, size - rows))
    skew, identity = square - square.mH, torch.eye(size, dtype=matrices.dtype)
    return torch.linalg.solve(identity + skew, identity - skew, left=False)[..., :rows, :columns]


def published_convolution(x, weight):
    """The published layer on the whole spectrum, as it is initialized: Q of each frequency of Ŵ."""
    n, (rows, columns) = x.shape[-1], weight.shape[2:]
    kernel = weight.new_zeros(*weight.shape[:2], n, n)
    for i, j in itertools.product(range(rows), range(columns)):  # what is read at +t is spread to −t
        kernel[:, :, ((rows - 1) // 2 - i) % n, ((columns - 1) // 2 - j) % n] += weight[:, :, i, j]
    response = torch.fft.fft2(kernel).permute(2, 3, 0, 1)
    matrices = published_cayley(response)
    return torch.fft.ifft2(torch.einsum("uvoi,biuv->bouv", matrices, torch.fft.fft2(x))).real


def dense(layer, shape, dtype=torch.float64):
    """The matrix of a layer without bias, a column per input entry."""
    size = math.prod(shape)
    return layer(torch.eye(size, dtype=dtype).view(size, *shape)).flatten(1).T


def built(seed=0, dtype=torch.float64, **arguments):
    torch.manual_seed(seed)
    layer = CayleyConv2d(**{"kernel_size": 3, "bias": False, **arguments}).to(dtype)
    layer.alpha.data = layer.weight.detach().norm()  # it was rounded to float32
    return layer


def identity_error(matrix):
    rows, columns = matrix.shape
    gram = matrix.T @ matrix if rows >= columns else matrix @ matrix.T
    return (gram - torch.eye(len(gram), dtype=matrix.dtype)).abs().max().item()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@given(**SHAPES)
@settings(max_examples=15, deadline=None)
def test_expansions_have_orthonormal_columns_and_contractions_orthonormal_rows(
    dtype, tolerance, inside, outside, kernel, blocks, stride, seed
):
    layer = built(seed, dtype, in_channels=inside, out_channels=outside, kernel_size=kernel, stride=stride)
    shape = (inside, blocks[0] * stride, blocks[1] * stride)
    x = torch.randn(3, *shape, dtype=dtype)
    with torch.no_grad():
        if math.prod(shape) <= 700:
            assert identity_error(dense(layer, shape, dtype)) < tolerance
        ratio = layer(x).flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)
    assert (ratio < 1 + tolerance).all()
    if outside >= inside * stride**2:
        assert (ratio - 1).abs().max() < tolerance


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    ("inside", "outside", "kernel", "n"), [(3, 5, 3, 8), (5, 3, 3, 7), (4, 4, 4, 6), (20, 20, 5, 6)]
)
def test_the_layer_is_the_references(inside, outside, kernel, n, kept):
    layer = built(in_channels=inside, out_channels=outside, kernel_size=kernel).train(not kept)
    x = torch.randn(2, inside, n, n, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), published_convolution(x, layer.weight), rtol=0, atol=1e-12)


CHANGES = {
    "weights": lambda layer: layer.weight.data.add_(torch.randn_like(layer.weight)),
    "alpha": lambda layer: layer.alpha.data.mul_(3),
    "precision": lambda layer: layer.float().double(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_kept_for_evaluation_is_never_out_of_date(change):
    layer = built(in_channels=3, out_channels=4).eval()
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    with torch.no_grad():
        layer(x)
    CHANGES[change](layer)
    with torch.no_grad():
        kept = layer(x)
        fresh = copy.deepcopy(layer).train()(x)
        torch.testing.assert_close(kept, fresh, rtol=0, atol=1e-12)
        other = x[:, :, :5, :4]
        torch.testing.assert_close(layer(other), copy.deepcopy(layer).train()(other), rtol=0, atol=1e-12)


def test_a_layer_with_a_stride_is_one_without_on_blocks():
    """Offsets −1, 0, 1 from the pixel at the centre are a block before, or a place in the block itself."""
    layer, x = built(in_channels=2, out_channels=9, stride=2), torch.randn(2, 2, 8, 6, dtype=torch.float64)
    kernel = torch.zeros(9, 2, 4, 4, dtype=torch.float64)  # taps −2 … 1: two blocks, the second at the centre
    kernel[:, :, 1:, 1:] = layer.weight.detach()
    blocks = built(in_channels=8, out_channels=9)
    with torch.no_grad():
        blocks.weight.zero_()
        blocks.weight[:, :, :2, :2] = nn.functional.pixel_unshuffle(kernel, 2)
        blocks.alpha.copy_(layer.alpha)
        torch.testing.assert_close(layer(x), blocks(nn.functional.pixel_unshuffle(x, 2)), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("inside", "outside"), [(5, 5), (3, 7), (7, 3)])
def test_linear_layers_are_the_references_and_orthogonal(inside, outside):
    torch.manual_seed(0)
    layer = CayleyLinear(inside, outside).double()
    alpha, weight = torch.tensor(1.7, dtype=torch.float64), torch.randn(outside, inside, dtype=torch.float64)
    layer.load_state_dict({"weight": weight, "bias": layer.bias, "alpha": alpha})
    expected = published_cayley(alpha * weight / weight.norm())
    assert identity_error(expected) < 1e-12
    x = torch.randn(4, 2, inside, dtype=torch.float64)
    for mode in (True, False):
        outputs = layer.train(mode)(x)
        assert outputs.requires_grad
        torch.testing.assert_close(outputs, x @ expected.T + layer.bias, rtol=0, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), x @ expected.T + layer.bias, rtol=0, atol=1e-12)


@pytest.mark.parametrize("layer", [CayleyConv2d(3, 4, 3), CayleyLinear(3, 4)])
def test_inside_bf16_autocast_all_is_float32(layer):
    x = torch.randn(2, 3, 6, 6) if isinstance(layer, CayleyConv2d) else torch.randn(2, 3)
    expected = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer(x), expected)
        low = layer(x.bfloat16())
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), expected, rtol=0.02, atol=0.02)

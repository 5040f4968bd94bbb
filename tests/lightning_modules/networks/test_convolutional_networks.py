"""Convolutional networks by name."""

from __future__ import annotations

import pytest
import torch

from lightning_modules.networks import create_network


def parameters(network):
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("name", "sizes", "published"),
    [
        ("convmixer_256_8_k5_p2", {}, 594_186),
        ("convmixer_256_8_k9_p1", {}, 706_570),
        ("convmixer_1536_20", {"num_classes": 1000, "image_size": 224}, 51_625_960),
        ("convmixer_768_32", {"num_classes": 1000, "image_size": 224}, 21_110_248),
    ],
)
def test_a_convmixer_has_the_published_number_of_parameters(name, sizes, published):
    with torch.device("meta"):
        assert parameters(create_network(name, **sizes)) == published


@pytest.mark.parametrize(("kernel_size", "patch_size"), [(3, 1), (9, 4)])
def test_a_name_says_any_sizes(kernel_size, patch_size):
    network = create_network(f"convmixer_8_2_k{kernel_size}_p{patch_size}", image_size=8, num_classes=3)
    assert [block[0].fn[0].weight.shape for block in network.blocks] == [(8, 1, kernel_size, kernel_size)] * 2
    assert network.stem(torch.randn(2, 3, 8, 8)).shape == (2, 8, 8 // patch_size, 8 // patch_size)
    assert network(torch.randn(2, 3, 8, 8)).shape == (2, 3)

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

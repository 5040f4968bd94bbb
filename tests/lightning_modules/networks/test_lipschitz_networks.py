from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lightning_modules.networks import LIPSCHITZ_NETWORKS, create_network
from lightning_modules.networks.lipschitz import ConvexResidual, NormPreservingPool
from structured_init import StructuredInitError
from structured_init.analysis import lipschitz_bound

SMALL = {"kw_large": 0.125, "resnet9": 0.0625}

# Layers of the published networks, read off locuslab/orthogonal-convolutions, models.py, for 32 × 32 × 3 and ten
# classes: (in, out) of the convolutions, all 3 × 3, of the linear layers, and the number of gates.
PUBLISHED = {
    "kw_large": ([(3, 32), (32, 32), (32, 64), (64, 64)], [(4096, 512), (512, 512), (512, 10)], 0),
    "resnet9": (
        [(3, 64), (64, 128), (128, 128), (128, 128), (128, 256), (256, 512), (512, 512), (512, 512)],
        [(2048, 512), (512, 10)],
        2,
    ),
}


def images(count=4, channels=3, side=32, seed=0):
    return torch.rand(count, channels, side, side, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("name", "conv"), [*((name, "cayley") for name in PUBLISHED), ("resnet9", "plain")])
def test_a_network_has_the_parameters_of_the_published_one(name, conv):
    convolutions, linears, gates = PUBLISHED[name]
    scale = conv == "cayley"  # one α for each orthogonal layer
    expected = sum(9 * i * o + o + scale for i, o in convolutions) + sum(i * o + o + scale for i, o in linears) + gates
    network = create_network(name, conv=conv)
    assert sum(parameter.numel() for parameter in network.parameters()) == expected


@pytest.mark.parametrize("name", LIPSCHITZ_NETWORKS)
def test_a_network_takes_the_sizes_asked_for(name):
    network = create_network(name, num_classes=7, image_size=64, in_channels=1, width=SMALL[name])
    assert network(images(2, 1, 64)).shape == (2, 7)


@pytest.mark.parametrize("name", LIPSCHITZ_NETWORKS)
def test_no_pair_of_images_is_drawn_apart_and_the_bound_says_so(name):
    torch.manual_seed(0)
    network = create_network(name, width=SMALL[name]).double().eval()
    with torch.no_grad():
        for parameter in network.parameters():  # away from the start
            parameter.add_(torch.randn_like(parameter) * parameter.abs().mean())
        x = images(16).double()
        # Smooth differences: pooling would let noise vanish, and the test could not fail.
        for y in (x.roll(1, 0), x + 0.01 * images(16, seed=1).double(), x * 0.5, x + 0.3):
            ratio = (network(x) - network(y)).norm(dim=1) / (x - y).flatten(1).norm(dim=1)
            assert ratio.max() <= 1 + 1e-9
    assert lipschitz_bound(network, x[:1]) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("gate", [-3.0, 0.0, 2.0])
def test_the_bound_of_a_residual_is_the_mean_of_its_branches_bounds(gate):
    residual = ConvexResidual(scaled(5.0), scaled(0.5), gate)
    share = 1 / (1 + math.exp(-gate))
    assert lipschitz_bound(residual, torch.randn(1, 4)) == pytest.approx(share * 0.5 + (1 - share) * 5.0, rel=1e-5)


def scaled(factor, size=4):
    layer = nn.Linear(size, size, bias=False)
    with torch.no_grad():
        layer.weight.copy_(factor * torch.eye(size))
    return layer


@pytest.mark.parametrize("size", [2, 4])
def test_pooling_keeps_the_norm_of_what_is_constant_in_its_windows_and_raises_none(size):
    pool = NormPreservingPool(size)
    coarse = torch.randn(3, 2, 4, 4)
    flat = coarse.repeat_interleave(size, 2).repeat_interleave(size, 3)
    torch.testing.assert_close(pool(flat).flatten(1).norm(dim=1), flat.flatten(1).norm(dim=1))
    torch.testing.assert_close(pool(flat), size * F.avg_pool2d(flat, size))
    assert lipschitz_bound(pool, flat[:1]) == pytest.approx(1.0, abs=1e-5)


def test_the_layers_of_orthogonium_make_an_orthogonal_network():
    pytest.importorskip("orthogonium", reason="orthogonium is not installed: the extra 'robust'")
    network = create_network("kw_large", width=0.25, conv="orthogonium").eval()
    assert type(network[0]).__mro__[1].__module__.startswith("orthogonium.")
    x, y = images(8), images(8, seed=1)
    with torch.no_grad():
        assert ((network(x) - network(y)).norm(dim=1) <= (1 + 1e-4) * (x - y).flatten(1).norm(dim=1)).all()
    assert lipschitz_bound(network, x[:1]) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"conv": "caley"}, "unknown conv 'caley': did you mean 'cayley'"),
        ({"width": 0}, "width must be a positive factor, not 0"),
        ({"image_size": 30}, "'kw_large' takes images whose side is a multiple of 4, not 30"),
    ],
)
def test_a_network_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(StructuredInitError, match=message):
        create_network("kw_large", **arguments)

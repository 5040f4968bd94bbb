from __future__ import annotations

import pytest
import torch

from lightning_modules.networks import create_network
from structured_init import StructuredInitError
from structured_init.analysis import lipschitz_bound

# Layers of the published network, read off locuslab/orthogonal-convolutions, models.py, for 32 × 32 × 3 and ten
# classes: (in, out) of the convolutions, all 3 × 3, and of the linear layers.
CONVOLUTIONS, LINEARS = [(3, 32), (32, 32), (32, 64), (64, 64)], [(4096, 512), (512, 512), (512, 10)]


def images(count=4, channels=3, side=32, seed=0):
    return torch.rand(count, channels, side, side, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("conv", ["cayley", "plain"])
def test_the_network_has_the_parameters_of_the_published_one(conv):
    scale = conv == "cayley"  # one α for each orthogonal layer
    expected = sum(9 * i * o + o + scale for i, o in CONVOLUTIONS) + sum(i * o + o + scale for i, o in LINEARS)
    network = create_network("kw_large", conv=conv)
    assert sum(parameter.numel() for parameter in network.parameters()) == expected


def test_the_network_takes_the_sizes_asked_for():
    network = create_network("kw_large", num_classes=7, image_size=64, in_channels=1, width=0.125)
    assert network(images(2, 1, 64)).shape == (2, 7)


def test_no_pair_of_images_is_drawn_apart_and_the_bound_says_so():
    torch.manual_seed(0)
    network = create_network("kw_large", width=0.125).double().eval()
    with torch.no_grad():
        for parameter in network.parameters():  # away from the start
            parameter.add_(torch.randn_like(parameter) * parameter.abs().mean())
        x = images(16).double()
        for y in (x.roll(1, 0), x + 0.01 * images(16, seed=1).double(), x * 0.5, x + 0.3):
            ratio = (network(x) - network(y)).norm(dim=1) / (x - y).flatten(1).norm(dim=1)
            assert ratio.max() <= 1 + 1e-9
    assert lipschitz_bound(network, x[:1]) == pytest.approx(1.0, abs=1e-5)


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

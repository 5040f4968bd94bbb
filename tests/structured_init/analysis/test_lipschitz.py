"""An upper bound of the Lipschitz constant that is one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from structured_init import StructuredInitError
from structured_init.analysis.lipschitz import lipschitz_bound, register_lipschitz
from structured_init.layers import CayleyConv2d, CayleyLinear, GroupSort, MaxMin


def drawn():
    """The layers, with the same weights in every run: how loose a bound is depends on them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return {
            "circular": (nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), (3, 6, 5)),
            "circular, even kernel": (nn.Conv2d(3, 4, (4, 2), padding="same", padding_mode="circular"), (3, 6, 5)),
            "circular, stride, groups": (nn.Conv2d(4, 6, 5, (2, 3), 2, padding_mode="circular", groups=2), (4, 6, 9)),
            "circular, larger output": (nn.Conv2d(2, 3, 3, padding=2, padding_mode="circular"), (2, 5, 6)),
            "zeros": (nn.Conv2d(3, 4, 3, padding=1), (3, 6, 5)),
            "zeros, stride": (nn.Conv2d(3, 2, 3, 2, padding=1), (3, 7, 6)),
            "replicate": (nn.Conv2d(2, 3, 5, padding=2, padding_mode="replicate"), (2, 5, 5)),
            "patches": (nn.Conv2d(3, 7, 2, 2), (3, 6, 8)),
            "patches, rest": (nn.Conv2d(2, 9, 2, 3), (2, 7, 8)),
            "one axis": (nn.Conv1d(3, 4, 3, padding=1, padding_mode="circular"), (3, 7)),
            "linear": (nn.Linear(7, 5), (7,)),
            "Cayley": (CayleyConv2d(3, 4, 3), (3, 6, 5)),
            "Cayley, stride": (CayleyConv2d(2, 4, 3, 2), (2, 6, 8)),
            "Cayley, linear": (CayleyLinear(7, 5), (7,)),
        }


LAYERS = drawn()


def written_out(layer, shape):
    columns = torch.eye(math.prod(shape)).view(-1, *shape)
    with torch.no_grad():
        return torch.linalg.svdvals((layer(columns) - layer(torch.zeros(1, *shape))).flatten(1).double())


@pytest.mark.parametrize("name", LAYERS)
def test_the_bound_is_never_below_the_operator(name):
    layer, shape = LAYERS[name]
    largest = written_out(layer, shape).max().item()
    bound = lipschitz_bound(layer, torch.randn(2, *shape))
    assert bound >= largest * (1 - 1e-6)
    assert bound <= largest * (3.2 if name in {"replicate", "circular, larger output"} else 1.35)
    if name.startswith(("Cayley", "linear")) or name == "circular":
        assert bound == pytest.approx(largest, rel=1e-4)


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        (nn.AvgPool2d(2, divisor_override=2), 1.0),
        (nn.AvgPool2d(2), 0.5),
        (nn.MaxPool2d(2), 1.0),
        (nn.AvgPool2d(3, 1, padding=1), 1.0),
    ],
)
def test_poolings_are_bounded_by_their_windows(pool, expected):
    assert lipschitz_bound(pool, torch.randn(1, 1, 6, 6)) == pytest.approx(expected)
    if isinstance(pool, nn.AvgPool2d):
        assert written_out(pool, (1, 6, 6)).max().item() <= expected + 1e-6


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        *(CayleyConv2d(3, 8, 3), MaxMin(), CayleyConv2d(8, 8, 3, 2), GroupSort(), nn.AvgPool2d(2, divisor_override=2)),
        *(nn.Flatten(), CayleyLinear(32, 16), MaxMin(), nn.Linear(16, 3)),
    )


def test_a_network_is_bounded_by_the_product_of_its_layers_as_they_are():
    model, x = network(), torch.randn(4, 3, 8, 8)
    last = torch.linalg.svdvals(model[-1].weight.detach().double()).max().item()
    bound = lipschitz_bound(model, x)
    assert last < bound < last * 1.001
    with torch.no_grad():
        model[-1].weight.mul_(3)
    assert lipschitz_bound(model, x) == pytest.approx(3 * bound, rel=1e-6)
    jacobian = torch.autograd.functional.jacobian(model, x[:1]).reshape(3, -1)
    assert torch.linalg.svdvals(jacobian).max().item() <= 3 * bound


class OwnForward(nn.Sequential):
    def forward(self, x):
        return 100 * super().forward(x)


@pytest.mark.parametrize("layer", [OwnForward(nn.ReLU()), nn.Softmax(1)])
def test_an_unknown_function_has_no_bound(layer):
    kind = type(layer).__name__
    with pytest.raises(
        StructuredInitError, match=rf"^no Lipschitz bound is known for {kind} \(1\): .*register_lipschitz\({kind}\)$"
    ):
        lipschitz_bound(nn.Sequential(nn.ReLU(), layer), torch.randn(1, 3, 4, 4))


def test_a_registered_rule_bounds_a_block_from_its_parts():
    class Residual(nn.Module):
        def __init__(self, branch):
            super().__init__()
            self.branch = branch

        def forward(self, x):
            return x + self.branch(x)

    @register_lipschitz(Residual)
    def residual(module, bounds):
        assert bounds.shapes(module.branch) == [(1, 3, 5, 5)]
        return 1 + bounds(module.branch)

    assert lipschitz_bound(Residual(CayleyConv2d(3, 3, 3)), torch.randn(1, 3, 5, 5)) == pytest.approx(2, rel=1e-4)

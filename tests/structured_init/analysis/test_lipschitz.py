"""An upper bound of the Lipschitz constant that is one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from structured_init import StructuredInitError
from structured_init.analysis.lipschitz import lipschitz_bound, register_lipschitz
from structured_init.layers import CayleyConv2d, CayleyLinear, MaxMin


def drawn():
    """The layers, with the same weights in every run: how loose a bound is depends on them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return {
            "circular": (nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), (3, 6, 5)),
            "circular, stride": (nn.Conv2d(4, 6, 5, 2, 2, padding_mode="circular"), (4, 6, 8)),
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
    assert bound == pytest.approx(largest, rel=1e-4)


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        *(CayleyConv2d(3, 8, 3), MaxMin(), CayleyConv2d(8, 8, 3, 2), MaxMin()),
        *(nn.Flatten(), CayleyLinear(128, 16), MaxMin(), nn.Linear(16, 3)),
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


def hooked():
    layer = nn.ReLU()
    layer.register_forward_pre_hook(lambda module, inputs: (100 * inputs[0],))
    return layer


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (OwnForward(nn.ReLU()), r"OwnForward: give one with .*register_lipschitz\(OwnForward\)$"),
        (nn.Softmax(1), r"Softmax: give one with .*register_lipschitz\(Softmax\)$"),
        (hooked(), "ReLU: it has forward hooks$"),
        (nn.Conv2d(3, 3, 3, padding=1), "Conv2d but with circular padding"),
        (nn.Conv2d(3, 3, 3, 3, padding=1, padding_mode="circular"), "Conv2d but .* a stride that divides the input"),
    ],
)
def test_an_unknown_function_has_no_bound(layer, message):
    with pytest.raises(StructuredInitError, match=f"^no Lipschitz bound is known for {message}"):
        lipschitz_bound(nn.Sequential(nn.ReLU(), layer), torch.randn(1, 3, 4, 4))


def test_a_registered_rule_bounds_a_block_from_its_parts():
    class Residual(nn.Module):
        def __init__(self, branch):
            super().__init__()
            self.branch = branch

        def forward(self, x):
            return x + self.branch(x)

    @register_lipschitz(Residual)
    def residual(module, inputs):
        assert inputs.shape == (1, 3, 5, 5)
        return 1 + lipschitz_bound(module.branch, inputs)

    assert lipschitz_bound(Residual(CayleyConv2d(3, 3, 3)), torch.randn(1, 3, 5, 5)) == pytest.approx(2, rel=1e-4)

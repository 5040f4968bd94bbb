"""MLPs are found by what they do: run alone, where their structure suggests it, or in the pass that finds attention."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers.pytorch_utils import Conv1D

from structured_init import mlp_sites

D, HIDDEN = 6, 10


class Functional(nn.Module):
    """A function without a module, and dropout."""

    def __init__(self, width=D, hidden=HIDDEN, back=D):
        super().__init__()
        self.up, self.drop, self.down = nn.Linear(width, hidden), nn.Dropout(0.5), nn.Linear(hidden, back)

    def forward(self, x):
        return self.drop(self.down(F.gelu(self.up(x))))


class Fused(nn.Module):
    """The first half of one map is the gate."""

    def __init__(self):
        super().__init__()
        self.both, self.last = nn.Linear(D, 2 * HIDDEN, bias=False), nn.Linear(HIDDEN, D, bias=False)

    def forward(self, x):
        gate, values = self.both(x).split(HIDDEN, -1)
        return self.last(values * F.silu(gate))


class Transposed(nn.Module):
    """GPT-2's maps, which store (in, out)."""

    def __init__(self):
        super().__init__()
        self.wide, self.narrow = Conv1D(HIDDEN, D), Conv1D(D, HIDDEN)

    def forward(self, x):
        return self.narrow(torch.relu(self.wide(x)) ** 2)


class ByProduct(Functional):
    """GELU as x · Φ(x): a product with itself, and no gate."""

    def forward(self, x):
        hidden = self.up(x)
        return self.down(hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5)))


def in_blocks(kind, beside=4):
    """Two blocks, each with other weights as attention has; of one call, to be run by nobody."""
    torch.manual_seed(0)
    others = [nn.ModuleList([nn.Linear(D, D) for _ in range(beside)]) for _ in range(2)]
    return nn.ModuleDict(
        {"layers": nn.ModuleList([nn.ModuleDict({"other": other, "part": kind()}) for other in others])}
    )


def first_of(part):
    """The first layer (D, F) that the test itself says the host has; in a gated MLP that of the values."""
    return {
        "Fused": lambda: part.both.weight[HIDDEN:].T,
        "Transposed": lambda: part.wide.weight,
    }.get(type(part).__name__, lambda: part.up.weight.T)()


OF_TOKENS = [Functional, Fused, Transposed, ByProduct]


@pytest.mark.parametrize("kind", OF_TOKENS)
def test_two_maps_around_a_function_in_a_block_are_an_mlp_without_a_batch(kind):
    model = in_blocks(kind)
    sites = mlp_sites(model)
    assert [(site.how, site.checked) for site in sites] == [("rule", True)] * 2
    for site, block in zip(sites, model["layers"], strict=True):
        assert torch.equal(site.first, first_of(block["part"]))
        assert_gate(site, block["part"])


def assert_gate(site, part):
    if isinstance(part, Fused):
        assert torch.equal(site.gate, part.both.weight[:HIDDEN].T)
    else:
        assert site.gate is None


class Residual(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        return x + self.part(x)


def watched(part):
    """MLPs of a model in which no list of blocks suggests them, on a batch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Identity(), part)
    return mlp_sites(model, batch=torch.randn(1, 5, D))


@pytest.mark.parametrize("kind", OF_TOKENS)
def test_two_maps_around_a_function_in_a_residual_branch_are_seen_to_be_an_mlp(kind):
    part = kind()
    [site] = watched(Residual(part))
    assert (site.name, site.how) == ("1.part", "watched")
    assert torch.equal(site.first, first_of(part))
    assert_gate(site, part)


class Squeeze(Functional):
    """Squeeze and excitation."""

    def forward(self, x):
        return x * super().forward(x.mean(1, keepdim=True)).sigmoid()


class WithoutAFunction(Functional):
    def forward(self, x):
        return self.down(3 * self.up(x))


@pytest.mark.parametrize("kind", [Squeeze, WithoutAFunction])
def test_what_is_no_mlp_of_a_block_is_none(kind):
    assert mlp_sites(in_blocks(kind)) == []
    assert watched(Residual(kind())) == []

"""Singular values of layers as operators, and an upper bound that is one."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

from structured_init import DeltaOrthogonal, StructuredInitError, initialize
from structured_init.analysis import singular_values
from structured_init.analysis.lipschitz import lipschitz_bound, lipschitz_report, register_lipschitz
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
TRANSPOSED = {  # the bound has no rule for them
    "transposed, up": nn.ConvTranspose2d(4, 3, 2, 2),
    "transposed, overlap": nn.ConvTranspose2d(4, 3, 3, 2),
}


def written_out(layer, shape):
    columns = torch.eye(math.prod(shape)).view(-1, *shape)
    with torch.no_grad():
        return torch.linalg.svdvals((layer(columns) - layer(torch.zeros(1, *shape))).flatten(1).double())


@pytest.mark.parametrize("dense", [1024, 1])
@pytest.mark.parametrize("name", [*LAYERS, *TRANSPOSED])
def test_singular_values_are_those_of_the_operator_written_out(name, dense, monkeypatch):
    monkeypatch.setattr(singular_values, "DENSE", dense)  # 1: iterate where nothing else is exact
    layer, shape = LAYERS[name] if name in LAYERS else (TRANSPOSED[name], (4, 3, 5))
    values = written_out(layer, shape)
    (entry,) = lipschitz_report(nn.Sequential(layer), torch.randn(2, *shape)).layers
    tolerance = 1e-5 if entry.exact else 2e-3
    assert entry.largest == pytest.approx(values.max().item(), rel=1e-5)
    assert entry.smallest == pytest.approx(values.min().item(), abs=tolerance)
    assert entry.distance == pytest.approx((values**2 - 1).abs().max().item(), abs=4 * tolerance)
    estimated = ("circular, larger output", "patches, rest", "transposed", "zeros", "replicate")
    exact = not name.startswith(estimated)
    assert entry.exact == (dense > 1 or exact)


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


def test_a_report_covers_any_network_and_start(tiny_vit, tmp_path):
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
    initialize(model, DeltaOrthogonal())
    x = torch.randn(1, 3, 6, 6)
    modes = [module.training for module in model.modules()]
    report = lipschitz_report(model, x)
    assert [module.training for module in model.modules()] == modes
    assert all(layer.distance < 1e-6 for layer in report.layers)
    assert [layer.input_shape for layer in report.layers] == [(3, 6, 6), (4, 6, 6)]
    report.save(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text()) == report.to_dict()
    assert str(report).count("Conv2d") == 2
    vit = lipschitz_report(tiny_vit(), torch.randn(1, 3, 8, 8))
    assert {"patch_embed.proj", "blocks.0.attn.qkv", "head"} <= {layer.name for layer in vit.layers}
    assert all(layer.exact for layer in vit.layers)


def test_orthogonium_convolutions_are_measured_as_orthogonal():
    conv = pytest.importorskip("orthogonium.layers.conv.AOC", reason="orthogonium is not installed: the extra 'robust'")
    torch.manual_seed(0)
    model = nn.Sequential(
        conv.AdaptiveOrthoConv2d(4, 8, 3), nn.ReLU(), conv.AdaptiveOrthoConv2d(8, 16, 4, stride=2, padding=1)
    )
    report = lipschitz_report(model, torch.randn(1, 4, 8, 8))
    assert len(report.layers) == 2
    assert all(layer.distance < 1e-4 for layer in report.layers)

"""MLPs are found by what they do: run alone, where their structure suggests it, or in the pass that finds attention."""

from __future__ import annotations

import pytest
import timm
import torch
import torch.nn.functional as F
import transformers
from hosts import of_transformers
from torch import nn
from transformers.pytorch_utils import Conv1D

from structured_init import MlpMean, Weights, initialize, mlp_sites

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


class GateLast(Fused):
    def forward(self, x):
        values, gate = self.both(x).split(HIDDEN, -1)
        return self.last(values * torch.sigmoid(gate))


class Transposed(nn.Module):
    """GPT-2's maps, which store (in, out)."""

    def __init__(self):
        super().__init__()
        self.wide, self.narrow = Conv1D(HIDDEN, D), Conv1D(D, HIDDEN)

    def forward(self, x):
        return self.narrow(torch.relu(self.wide(x)) ** 2)


class Pixels(nn.Module):
    """Convolutions of one pixel."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(D, HIDDEN, 1), nn.BatchNorm2d(HIDDEN), nn.ReLU(), nn.Conv2d(HIDDEN, D, 1))

    def forward(self, x):
        return self.layers(x)


class NormInTheMiddle(Functional):
    """As in SubLN and NormFormer."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)

    def forward(self, x):
        return self.down(self.norm(F.gelu(self.up(x))))


class ByHand(Functional):
    """xIELU without its parameters: x plus a function of x, chosen number by number."""

    def forward(self, x):
        hidden = self.up(x)
        return self.down(torch.where(hidden > 0, hidden * hidden + hidden / 2, torch.expm1(hidden) - hidden / 2))


class ByProduct(Functional):
    """GELU as x · Φ(x): a product with itself, and no gate."""

    def forward(self, x):
        hidden = self.up(x)
        return self.down(hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5)))


class TwoArguments(Functional):
    def forward(self, x, mask):
        assert mask is None
        return super().forward(x)


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
        "GateLast": lambda: part.both.weight[:HIDDEN].T,
        "Transposed": lambda: part.wide.weight,
        "Pixels": lambda: part.layers[0].weight[:, :, 0, 0].T,
    }.get(type(part).__name__, lambda: part.up.weight.T)()


OF_TOKENS = [Functional, Fused, GateLast, Transposed, NormInTheMiddle, ByHand, ByProduct]


@pytest.mark.parametrize("kind", [*OF_TOKENS, Pixels, TwoArguments])
def test_two_maps_around_a_function_in_a_block_are_an_mlp_without_a_batch(kind):
    model = in_blocks(kind)
    sites = mlp_sites(model)
    assert [(site.how, site.checked) for site in sites] == [("rule", True)] * 2
    for site, block in zip(sites, model["layers"], strict=True):
        assert torch.equal(site.first, first_of(block["part"]))
        assert_gate(site, block["part"])


def assert_gate(site, part):
    gates = {Fused: slice(None, HIDDEN), GateLast: slice(HIDDEN, None)}
    if type(part) in gates:
        assert torch.equal(site.gate, part.both.weight[gates[type(part)]].T)
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


class Adapter(Functional):
    def __init__(self):
        super().__init__(hidden=D // 2)

    def forward(self, x):
        return x + super().forward(x)


class Head(Functional):
    def __init__(self):
        super().__init__(back=3)


class EndsInAFunction(Functional):
    def forward(self, x):
        return super().forward(x).sigmoid()


class WithoutAFunction(Functional):
    def forward(self, x):
        return self.down(3 * self.up(x))


class NormAlone(nn.Module):
    """Nothing but a batch norm that has seen data between two maps."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(D, HIDDEN, 1), nn.BatchNorm2d(HIDDEN), nn.Conv2d(HIDDEN, D, 1))
        self.layers[1].running_mean.normal_()

    def forward(self, x):
        return self.layers(x)


class HalvesAdded(nn.Module):
    """Hidden units that are sums of two outputs are no outputs of a map."""

    def __init__(self):
        super().__init__()
        self.both, self.last = nn.Linear(D, 2 * HIDDEN), nn.Linear(HIDDEN, D)

    def forward(self, x):
        one, two = self.both(x).chunk(2, -1)
        return self.last(F.relu(one + two))


class Attention(nn.Module):
    """Keys and values in one map, so that maps of D to 2·D and of D to D are there."""

    def __init__(self):
        super().__init__()
        self.kv, self.out = nn.Linear(D, 2 * D), nn.Linear(D, D)

    def forward(self, x):
        key, value = self.kv(x).chunk(2, -1)
        return self.out(F.scaled_dot_product_attention(x, key, value))


class LinearAttention(nn.Module):
    """As in MobileViTv2: values through a function, times one context of all tokens."""

    def __init__(self):
        super().__init__()
        self.both, self.out = nn.Linear(D, 2 * D), nn.Linear(D, D)

    def forward(self, x):
        key, value = self.both(x).chunk(2, -1)
        return self.out(F.relu(value) * (key * 2).sum(1, keepdim=True).expand_as(value))


class Experts(nn.Module):
    """A mixture whose experts share a weight of three axes."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Parameter(torch.randn(2, D, HIDDEN)), nn.Parameter(torch.randn(2, HIDDEN, D))

    def forward(self, x):
        return (F.gelu(x @ self.up[:, None]) @ self.down[:, None]).sum(0)


REFUSED = [Squeeze, Adapter, EndsInAFunction, WithoutAFunction, HalvesAdded, Attention, LinearAttention, Experts]


@pytest.mark.parametrize("kind", [*REFUSED, Head, NormAlone])
def test_what_is_no_mlp_of_a_block_is_none_by_rule(kind):
    assert mlp_sites(in_blocks(kind)) == []


@pytest.mark.parametrize("kind", [WithoutAFunction, Squeeze])
def test_what_is_no_mlp_is_not_seen_to_be_one(kind):
    assert watched(Residual(kind())) == []


def test_outside_of_a_residual_branch_nothing_is_seen_to_be_an_mlp():
    assert watched(Functional()) == []
    assert watched(nn.Sequential(Head(), nn.Linear(3, D))) == []


def test_a_projector_or_a_head_of_equal_widths_stands_in_no_block():
    model = nn.ModuleDict({"tower": in_blocks(Functional), "projector": Functional()})
    assert [site.name for site in mlp_sites(model)] == ["tower.layers.0.part", "tower.layers.1.part"]
    merger = nn.ModuleDict({"mergers": nn.ModuleList([NormInTheMiddle() for _ in range(2)])})
    assert mlp_sites(merger) == []


def test_a_mixture_of_experts_is_named_as_what_it_is():
    model = nn.ModuleDict({"tower": in_blocks(Functional), "mlp": Experts()})
    before = model["tower"]["layers"][1]["part"].up.weight.detach().clone()
    report = initialize(model, MlpMean(0.5))
    assert report.skipped == {"mlp": "Experts keeps its experts in weights of three axes"}
    torch.testing.assert_close(model["tower"]["layers"][1]["part"].up.weight, before + 0.5)


def test_modules_are_left_as_they_were_and_no_random_number_is_drawn():
    model = in_blocks(Pixels)
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    assert len(mlp_sites(model)) == 2
    assert torch.equal(state, torch.get_rng_state())
    assert all(module.training for module in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_mlps_beside_known_ones_are_found_too():
    torch.manual_seed(0)
    blocks = [timm.models.vision_transformer.Block(D, 2), in_blocks(Fused)["layers"][0]]
    sites = mlp_sites(nn.Sequential(*blocks))
    assert [(site.name, site.how) for site in sites] == [("0.mlp", "written"), ("1.part", "rule")]


TINY = {"vocab_size": 20, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 32}


def test_hosts_without_a_telling_name_and_with_fused_layers_are_found():
    torch.manual_seed(0)
    opt = of_transformers("OPTModel", **TINY, hidden_size=8, ffn_dim=12, word_embed_proj_dim=8)
    tokens = torch.arange(3, 9)[None]
    sites = mlp_sites(Weights(opt, batch={"input_ids": tokens}))
    assert [site.name for site in sites] == ["decoder.layers.0", "decoder.layers.1"]
    assert torch.equal(sites[1].first, opt.decoder.layers[1].fc1.weight.T)
    config = transformers.Phi3Config(**TINY, hidden_size=8, intermediate_size=12, pad_token_id=0)
    phi = transformers.Phi3Model(config)
    [first, _] = mlp_sites(phi)  # its class says that there is an MLP, so the host is asked for a batch
    gate, values = phi.layers[0].mlp.gate_up_proj.weight.chunk(2)
    assert torch.equal(first.gate, gate.T)
    assert torch.equal(first.first, values.T)


class Scaled(nn.Module):
    """A block of ConvNeXt with its scale per channel, which is the first of its parameters."""

    def __init__(self):
        super().__init__()
        self.gamma, self.depthwise = nn.Parameter(torch.ones(D, 1, 1)), nn.Conv2d(D, D, 3, padding=1, groups=D)
        self.wide, self.back = nn.Conv2d(D, HIDDEN, 1), nn.Conv2d(HIDDEN, D, 1)

    def forward(self, x):
        return x + self.gamma * self.back(nn.functional.gelu(self.wide(self.depthwise(x))))


def test_a_scale_per_channel_does_not_hide_an_mlp_of_images():
    sites = mlp_sites(nn.Sequential(nn.Conv2d(3, D, 2, 2), nn.Sequential(Scaled(), Scaled())))
    assert [site.name for site in sites] == ["1.0", "1.1"]


def test_a_block_with_a_convolution_behind_its_function_is_no_mlp_and_one_in_front_of_it_is():
    torch.manual_seed(0)
    images, depths = torch.randn(1, 3, 64, 64), (1, 1, 1, 1)
    pvt = timm.create_model("pvt_v2_b0", depths=depths)  # linear, depthwise, GELU, linear
    sites = mlp_sites(Weights(pvt, batch=images))
    assert [site.name for site in sites] == [f"stages.{stage}.blocks.0.mlp" for stage in range(4)]
    mixers = [timm.models.metaformer.SepConv] * 4  # linear, StarReLU, depthwise, linear
    metaformer = timm.models.metaformer.MetaFormer(depths=depths, dims=(8, 8, 8, 8), token_mixers=mixers)
    sites = mlp_sites(Weights(metaformer, batch=images))
    assert [site.name for site in sites] == [f"stages.{stage}.blocks.0.mlp" for stage in range(4)]


def test_an_initializer_writes_to_what_was_found():
    torch.manual_seed(0)
    model = Residual(Fused())
    before = model.part.both.weight.detach().clone()
    initialize(model, MlpMean(0.5, gated="value"), batch=torch.randn(1, 5, D))
    torch.testing.assert_close(model.part.both.weight[HIDDEN:], before[HIDDEN:] + 0.5)
    assert torch.equal(model.part.both.weight[:HIDDEN], before[:HIDDEN])

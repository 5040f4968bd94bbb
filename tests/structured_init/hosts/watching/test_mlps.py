"""MLPs that nobody described are found in the forward pass that finds attention, by what they do and not by a name."""

from __future__ import annotations

import pytest
import timm
import torch
import torch.nn.functional as F
import transformers
from hosts import of_transformers
from torch import nn

from structured_init import MlpMean, Weights, initialize, mlp_sites

D, HIDDEN = 6, 10


class Stranger(nn.Module):
    """Two maps under names of their own, around a function, in a residual branch."""

    def __init__(self, first=HIDDEN, back=D):
        super().__init__()
        self.one, self.two = nn.Linear(D, first), nn.Linear(HIDDEN, back)

    def forward(self, x):
        return x + self.two(self.between(self.one(x)))

    def between(self, hidden):
        return hidden.relu()


class ByHand(Stranger):
    """GELU as x · Φ(x): a product with itself, and no gate."""

    def between(self, hidden):
        return hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))


class GateFirst(Stranger):
    def __init__(self):
        super().__init__(2 * HIDDEN)

    def between(self, hidden):
        gate, values = hidden.chunk(2, -1)
        return F.silu(gate) * values


class GateLast(GateFirst):
    def between(self, hidden):
        values, gate = hidden.chunk(2, -1)
        return values * torch.sigmoid(gate)


class WithoutFunction(Stranger):
    def between(self, hidden):
        return 2 * hidden


class WithoutResidual(Stranger):
    def forward(self, x):
        return self.two(self.one(x).relu())


class Elsewhere(Stranger):
    """Makes another width, as a head does."""

    def __init__(self):
        super().__init__(back=3)

    def forward(self, x):
        return self.two(self.one(x).relu()) + 1


class OfThePooledToken(Stranger):
    """Squeeze and excitation."""

    def forward(self, x):
        return x + self.two(self.one(x.mean(1, keepdim=True)).relu())


def found(model, *shape):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Identity(), model)
    return mlp_sites(Weights(model, batch=torch.randn(shape or (1, 5, D)))), model[1]


@pytest.mark.parametrize("kind", [Stranger, ByHand])
def test_a_map_a_function_and_a_map_back_are_an_mlp(kind):
    [site], model = found(kind())
    assert (site.name, site.how, site.gate) == ("1", "watched", None)
    assert torch.equal(site.first, model.one.weight.T)


@pytest.mark.parametrize(("kind", "gate"), [(GateFirst, 0), (GateLast, HIDDEN)])
def test_the_gate_of_a_fused_map_is_the_half_that_goes_through_the_function(kind, gate):
    [site], model = found(kind())
    values = HIDDEN - gate
    assert torch.equal(site.gate, model.one.weight[gate : gate + HIDDEN].T)
    assert torch.equal(site.first, model.one.weight[values : values + HIDDEN].T)


@pytest.mark.parametrize("kind", [WithoutFunction, WithoutResidual, Elsewhere, OfThePooledToken])
def test_what_is_no_mlp_is_not_called_one(kind):
    assert found(kind())[0] == []


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
    model = GateFirst()
    before = model.one.weight.detach().clone()
    initialize(model, MlpMean(0.5, gated="value"), batch=torch.randn(1, 5, D))
    torch.testing.assert_close(model.one.weight[HIDDEN:], before[HIDDEN:] + 0.5)
    assert torch.equal(model.one.weight[:HIDDEN], before[:HIDDEN])

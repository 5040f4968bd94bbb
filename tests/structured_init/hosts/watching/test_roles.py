"""One parameter in two roles: both products are what was asked for, or a line names the parameter and both roles."""

from __future__ import annotations

import pytest
import strangers
import torch
from torch import nn
from torch.func import jacrev

from structured_init import Compose, KaimingUniform, Mimetic, StructuredInitError, initialize

TOKENS = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0))
MIMETIC = Mimetic(positions="keep")


def products(model):
    """Return W_q W_kᵀ of every head and W_v W_o of the layer, as the module's own maps compute them."""
    q, k, v = (
        jacrev(lambda x, m=m: m(x).unflatten(-1, (3, 4)))(torch.zeros(12)) for m in (model.ask, model.meet, model.carry)
    )
    o = jacrev(model.write)(torch.zeros(12)).unflatten(1, (3, 4))
    return torch.einsum("hkd,hke->hde", q, k).detach(), torch.einsum("hkd,ehk->de", v, o).detach()


def started(model, initializer):
    torch.manual_seed(0)
    model = model()
    return model, initialize(model, initializer, batch=TOKENS)


def cosine(one, two):
    return float((one * two).sum() / (one.norm() * two.norm()))


@pytest.mark.parametrize(
    ("names", "said", "initializer"),
    [
        (["carry"], "both the values and the keys", MIMETIC),
        (["carry"], "both the values and the keys", Compose([KaimingUniform(), Mimetic(vo_beta=0.1), MIMETIC])),
        (["carry"], "both the keys and the values", Compose([Mimetic(query_key=False), Mimetic(value_output=False)])),
        (["ask"], "both the queries and the keys", MIMETIC),
        (["ask", "carry"], "both the queries and the keys", MIMETIC),
    ],
)
def test_both_products_of_a_shared_map_are_near_those_asked_for(names, said, initializer):
    model, report = started(lambda: strangers.OneMapFor(*names), initializer)
    own, _ = started(strangers.Apart, initializer)
    (query_key, value_output), (asked, sums) = products(model), products(own)
    assert cosine(query_key, asked) > 0.9
    assert cosine(value_output, sums) > 0.9
    for real, wanted in ((query_key, asked), (value_output, sums)):
        means = [float(each.diagonal(dim1=-2, dim2=-1).mean()) for each in (real, wanted)]
        assert means[0] == pytest.approx(means[1], abs=0.05)
    assert said in report.notes[""]


class KeysAreValues(nn.Module):
    """Four heads of 4, two by two with one key, which is their value too; width 8."""

    def __init__(self):
        super().__init__()
        self.ask, self.meet, self.write = nn.Linear(8, 16), nn.Linear(8, 8), nn.Linear(16, 8)

    def forward(self, x):
        query, key = strangers.heads(self.ask(x), 4), strangers.heads(self.meet(x), 2)
        return self.write(
            strangers.merged(nn.functional.scaled_dot_product_attention(query, key, key, enable_gqa=True))
        )


def test_heads_that_share_a_value_which_is_their_key_write_the_product_once_together():
    torch.manual_seed(0)
    model = KeysAreValues()
    initialize(model, MIMETIC, batch=torch.randn(2, 5, 8))
    value, output = model.meet.weight.view(2, 4, 8).repeat_interleave(2, 0), model.write.weight.view(8, 4, 4)
    product = torch.einsum("hkd,ehk->de", value, output)
    assert product.diagonal().mean().item() == pytest.approx(-0.4, abs=0.15)


def test_a_map_that_cannot_be_both_is_one_line_and_nothing_is_written():
    model = strangers.OneMapFor("ask")
    before = model.meet.weight.detach().clone()
    with pytest.raises(StructuredInitError) as caught:
        initialize(model, Mimetic(positions="keep", qk_sign=-1), batch=TOKENS)
    assert "'ask.weight' is both the queries and the keys of the model" in str(caught.value)
    assert torch.equal(model.meet.weight, before)


def test_of_two_layers_that_share_their_keys_one_has_its_product_and_the_other_is_skipped():
    model, report = started(strangers.SharedKey, MIMETIC)
    diagonals = [products(layer)[0].diagonal(dim1=1, dim2=2).mean() for layer in (model.one, model.two)]
    assert sum(float(each) > 0.3 for each in diagonals) == 1
    [(name, why)] = report.skipped.items()
    assert name.endswith("(queries, keys)")
    assert "'one.meet.weight' is both the keys of" in why
    assert all(products(layer)[1].diagonal().mean() < -0.3 for layer in (model.one, model.two))


def test_layers_that_are_one_layer_are_written_as_one():
    torch.manual_seed(0)
    model = torch.nn.Sequential(strangers.Apart(), strangers.Apart())
    for name in ("ask", "meet", "carry", "write"):
        getattr(model[1], name).weight = getattr(model[0], name).weight
    report = initialize(model, MIMETIC, batch=TOKENS)
    assert report.skipped == {}
    query_key, value_output = products(model[0])
    assert query_key.diagonal(dim1=1, dim2=2).mean() > 0.3
    assert value_output.diagonal().mean() < -0.3

"""One parameter in two roles: the product that is written first keeps it, and a line names the other."""

from __future__ import annotations

import pytest
import strangers
import torch
from torch.func import jacrev

from structured_init import Compose, Mimetic, StructuredInitError, initialize

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


VALUES_FIRST = Compose([Mimetic(query_key=False, positions="keep"), Mimetic(value_output=False, positions="keep")])


@pytest.mark.parametrize(
    ("names", "initializer", "kept", "skipped", "said"),
    [
        (["carry"], MIMETIC, 0, " (values, output projection)", "both the values and the keys"),
        (["carry"], VALUES_FIRST, 1, " (queries, keys)", "both the keys and the values"),
        (["ask"], MIMETIC, 1, " (queries, keys)", "both the queries and the keys"),
        (["ask", "carry"], MIMETIC, 1, " (queries, keys)", "both the queries and the keys"),
    ],
)
def test_the_product_that_is_written_first_keeps_a_shared_map_and_the_other_is_skipped(
    names, initializer, kept, skipped, said
):
    model, report = started(lambda: strangers.OneMapFor(*names), initializer)
    own, _ = started(strangers.Apart, initializer)
    torch.testing.assert_close(products(model)[kept], products(own)[kept])
    [(name, why)] = report.skipped.items()
    assert name == skipped
    assert said in why


def test_a_map_that_cannot_be_both_is_one_line():
    with pytest.raises(StructuredInitError, match=r"'ask\.weight' is both the queries and the keys of the model"):
        initialize(strangers.OneMapFor("ask"), Mimetic(positions="keep", value_output=False), batch=TOKENS)


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

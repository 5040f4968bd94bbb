from __future__ import annotations

import pytest
import torch

from structured_init.layers import SequencePooling, TokenSoftmaxValue

# The variants of the record, written as it has them: what stands in place of x, (B, N, D).
RECORD = {
    "x": (None, lambda x: x),
    "softmax(x)": ({"mode": "replace"}, lambda x: x.softmax(1)),
    "10*softmax(x)": ({"mode": "replace", "scale": 10.0}, lambda x: 10 * x.softmax(1)),
    "softmax(x)+x": ({"mode": "add"}, lambda x: x.softmax(1) + x),
    "x-softmax(x)": ({"mode": "subtract"}, lambda x: x - x.softmax(1)),
}


@pytest.mark.parametrize("variant", RECORD)
def test_pooling_is_a_weighted_mean_of_what_the_record_puts_in_place_of_the_tokens(variant):
    arguments, replaced = RECORD[variant]
    pool = SequencePooling(6, None if arguments is None else TokenSoftmaxValue(**arguments))
    torch.nn.init.normal_(pool.score.weight)
    x = torch.randn(3, 5, 6)
    scores = x @ pool.score.weight[0] + pool.score.bias
    weights = scores.exp() / scores.exp().sum(1, keepdim=True)
    torch.testing.assert_close(pool(x), torch.einsum("bn,bnd->bd", weights, replaced(x)))


@pytest.mark.parametrize("values", [None, TokenSoftmaxValue("remix", alpha=0.5)])
def test_masked_tokens_are_as_if_they_were_not_there(values):
    pool, x = SequencePooling(6, values), torch.randn(2, 5, 6)
    mask = torch.tensor([[True, True, True, False, False]] * 2)
    torch.testing.assert_close(pool(x, mask), pool(x[:, :3]))

"""What the analyses and the layers refuse, each in one line that names what is wrong."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from structured_init.analysis import (
    audit,
    best_offset,
    capture_attention,
    cka_matrix,
    entropy,
    filter_change,
    filter_statistics,
    implicit_attention,
    impulse_mass,
    induction_score,
    mean_distance,
    previous_token_score,
    repeated_blocks,
    repeated_tokens,
    summarize,
)
from structured_init.layers import CayleyConv2d, MaxMin, TokenSoftmaxValue
from structured_init.util.errors import StructuredInitError

WIDE, FIRST = torch.randn(8, 4), torch.tensor([0])


def maps(samples: int = 4, heads: int = 3, tokens: int = 11) -> torch.Tensor:
    return torch.full((samples, heads, tokens, tokens), 1 / tokens)


def text(samples: int = 4, tokens: int = 11) -> torch.Tensor:
    return torch.ones(samples, tokens, dtype=torch.long)


def filters(count: int, side: int = 3) -> torch.Tensor:
    return torch.ones(count, side, side)


def attend(apart: float):
    query, key, value = torch.zeros(3, 1, 2, 5, 4)
    value[0, 0, 3] = apart
    return TokenSoftmaxValue().attend(query, key, value, is_causal=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean_distance(maps(), (3, 3), 1), "grid of 3 × 3 does not fit attention over 10 patches"),
        (lambda: induction_score(maps(), text(3)), "tokens of shape (3, 11) do not fit maps of (4, 11)"),
        (lambda: induction_score(maps(), text(16)), "capture_attention keeps the first max_samples"),
        (lambda: induction_score(maps(), text(), text(4, 5) > 0), "queries of shape (4, 5) do not fit"),
        (lambda: repeated_tokens(2, 1, FIRST, generator=None), "length must be a whole number from 2, got 1"),
        (lambda: capture_attention(nn.Linear(8, 4, device="meta"), WIDE), "it is on the meta device and has no"),
        (lambda: cka_matrix({}, {}), "cka_matrix: a side has no Gram matrices"),
        (lambda: filter_change(filters(2), filters(2, 5)), "of the same layer, got (2, 3, 3) and (2, 5, 5)"),
        (lambda: repeated_blocks(nn.Linear(2, 2)), "Linear has no list of equal blocks to look at"),
        (lambda: implicit_attention(nn.Linear(3, 3), torch.zeros(1, 2, 3)), "Linear does not report the inputs of"),
        (lambda: mean_distance(maps()[0, 0], (1, 11)), "maps are (batch, heads, queries, keys), got shape (11, 11)"),
        (lambda: mean_distance(maps(), (3, 4), -1), "prefix_tokens must be a whole number from 0, got -1"),
        (lambda: entropy(maps()[0]), "maps are (batch, heads, queries, keys), got shape (3, 11, 11)"),
        (lambda: impulse_mass(maps(), torch.zeros(2, 2).long(), (1, 11)), "for each of 3 heads, got shape"),
        (lambda: best_offset(maps(), (2, 5), 1, window=4), "window must be an odd number, got 4"),
        (lambda: best_offset(maps()[..., :5], (1, 5)), "11 queries and 5 keys, as of cross-attention: between them no"),
        (lambda: previous_token_score(maps()[..., :5]), "11 queries and 5 keys, as of cross-attention"),
        (lambda: filter_statistics(torch.ones(6, 15)), "got shape (6, 15): of 1-D ones give filters[:, None]"),
        (lambda: audit("x"), "audit needs a model, an nn.Module, got str"),
        (lambda: audit(nn.Linear(3, 4), max_samples=0), "max_samples must be a whole number from 1 or null, got 0"),
        (lambda: audit(nn.ReLU()), "ReLU has no parameters: there is nothing to audit"),
        (lambda: CayleyConv2d(3, 4, 5)(torch.ones(1, 3, 8, 4)), "the input 8×4 is smaller than the kernel 5×5"),
        (lambda: MaxMin()(torch.zeros(1, 3)), "MaxMin needs an even number of channels, got 3"),
        (lambda: attend(200.0), "values of one coordinate lie 200 apart: the softmax over the tokens that each query"),
        (lambda: TokenSoftmaxValue(mode="remx"), "mode must be replace, add, subtract or remix, got 'remx'"),
        (lambda: TokenSoftmaxValue("remix", alpha=1.5), "alpha must be in [0, 1], not 1.5"),
        (lambda: TokenSoftmaxValue(alpha=0.5), "mode 'replace' has no alpha: use 'remix'"),
    ],
)
def test_a_wrong_call_is_one_line(as_installed, call, message):
    with pytest.raises(StructuredInitError) as caught:
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("maps", [torch.randn(2, 3, 16, 16), torch.full((2, 3, 16, 16), 100 / 16)])
def test_maps_whose_rows_are_no_shares_are_warned_of(maps):
    said = "summarize: rows of these maps are no shares of attention: a softmax is missing, or the host mixes its heads"
    with pytest.warns(UserWarning, match=said):
        summarize(maps, grid=(4, 4))

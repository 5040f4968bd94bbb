"""Previous-token and induction scores: against loops over tokens, and of maps that are built to have them."""

import math

import pytest
import torch

from structured_init.analysis import (
    induction_score,
    prefix_matches,
    previous_token_score,
    repeated_tokens,
)

HEADS = 3


def maps(batch=4, tokens=11, seed=0):
    logits = torch.randn(batch, HEADS, tokens, tokens, generator=torch.Generator().manual_seed(seed)).mul(2)
    return logits.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -math.inf).softmax(-1)


def text(batch=4, tokens=11, words=4, seed=1):
    return torch.randint(words, (batch, tokens), generator=torch.Generator().manual_seed(seed))


def looked_back(maps, tokens, asked=None):
    """The induction score, token by token."""
    batch, heads, length, _ = maps.shape
    seen = [[] for _ in range(heads)]
    for b in range(batch):
        for t in range(length):
            behind_equals = [s for s in range(1, t) if tokens[b, s - 1] == tokens[b, t]]
            if behind_equals and (asked is None or asked[b, t]):
                for head in range(heads):
                    seen[head].append(sum(maps[b, head, t, s].item() for s in behind_equals))
    return torch.tensor([sum(each) / len(each) for each in seen])


def test_the_previous_token_score_is_the_mean_over_tokens_that_have_one_before():
    both_ways = maps().flip(-1, -2) + maps(seed=2)
    expected = torch.zeros(HEADS)
    for t in range(1, 11):
        expected += both_ways[:, :, t, t - 1].mean(0) / 10
    torch.testing.assert_close(previous_token_score(both_ways), expected)


@pytest.mark.parametrize("words", [2, 4, 30])
def test_the_induction_score_is_that_of_a_loop_over_tokens(words):
    tokens = text(words=words)
    torch.testing.assert_close(induction_score(maps(), tokens), looked_back(maps(), tokens))


def test_tokens_that_are_not_asked_do_not_count():
    tokens, asked = text(), torch.rand(4, 11, generator=torch.Generator().manual_seed(3)) > 0.5
    torch.testing.assert_close(induction_score(maps(), tokens, asked), looked_back(maps(), tokens, asked))


def test_text_without_repeats_has_no_induction_score():
    assert induction_score(maps(2), torch.arange(11).expand(2, -1)).isnan().all()
    assert not prefix_matches(torch.zeros(1, 2, dtype=torch.int)).any()  # a token that equals the one before it


def test_the_places_behind_equal_tokens_are_marked():
    # a b a c a: the second a looks at b, the third at b and c
    marked = prefix_matches(torch.tensor([[7, 8, 7, 9, 7]]))[0]
    assert marked.nonzero().tolist() == [[2, 1], [4, 1], [4, 3]]


def test_random_tokens_come_twice_and_are_unlike_each_other_while_there_are_enough():
    words = torch.arange(100, 120)
    tokens = repeated_tokens(5, 33, words, generator=torch.Generator().manual_seed(0))
    assert tokens.shape == (5, 33)
    assert torch.equal(tokens[:, :16], tokens[:, 16:32])
    assert torch.equal(tokens[:, 0], tokens[:, 32])
    assert all(len(set(half.tolist())) == 16 for half in tokens[:, :16])
    assert set(tokens.flatten().tolist()) <= set(words.tolist())
    assert len(tokens[:, :16].unique(dim=0)) == 5
    few = repeated_tokens(2, 10, words[:3], generator=torch.Generator().manual_seed(0))
    assert torch.equal(few[:, :5], few[:, 5:])
